"""`POST /jobs/{job}/query` and `/explain`: federated SQL of the user's own."""

from __future__ import annotations

import anyio.to_thread
import structlog
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from muster.gateway import requests
from muster.gateway.answers import checked, respond
from muster.gateway.disconnect import while_connected
from muster.gateway.requests import QueryBody
from muster.gateway.routes.context import JobPath, may_query, parts_of
from muster.gateway.shapes import PROBLEMS, ExplainAnswer, QueryAnswer
from muster.sql import explain as explaining
from muster.sql.plan import Statement

router = APIRouter(tags=["sql"], dependencies=[Depends(may_query)], responses=PROBLEMS)
_audit = structlog.get_logger("muster.audit")


@router.post(
    "/jobs/{job}/query",
    response_class=Response,
    responses={
        200: {
            "model": QueryAnswer,
            "description": "The answer, as JSON, CSV or Arrow by Accept.",
            "content": {"text/csv": {}, "application/vnd.apache.arrow.stream": {}},
        }
    },
    summary="Any SELECT over the whole job, as if all its rows lay in one DuckDB.",
)
async def post_query(request: Request, job: JobPath, body: QueryBody) -> Response:
    requests.only(request, ())
    parts = parts_of(request)
    view = parts.registry.view(job, parts.clock())
    deadline = min(body.deadline or parts.settings.deadline_s, parts.settings.max_deadline_s)
    statement = Statement("query", body.sql, body.params, body.use_global)
    _audit.info("query", job=job, token=parts.auth.name(request), sql=body.sql)
    results = await while_connected(request, parts.federation.run([statement], view, deadline_s=deadline, lane="adhoc"))
    result = results["query"]
    table = checked(result, body, body.max_rows or parts.settings.max_rows, parts.settings.max_answer_bytes)
    return await anyio.to_thread.run_sync(respond, request.headers.get("accept", ""), table, result)


@router.post("/jobs/{job}/explain", summary="How a query would be answered; nothing is asked.")
async def post_explain(request: Request, job: JobPath, body: QueryBody) -> ExplainAnswer:
    requests.only(request, ())
    parts = parts_of(request)
    view = parts.registry.view(job, parts.clock())
    statement = Statement("query", body.sql, body.params, body.use_global)
    plan, refused = await parts.federation.plan([statement], view)
    if refused:
        raise refused["query"]
    return ExplainAnswer(plan=explaining.as_dict(plan), tree=explaining.tree(plan))
