"""`GET /jobs/{job}/health` and `GET /jobs/{job}/diagnoses/{id}`."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from muster.diagnosis.params import used
from muster.diagnosis.report import health_json, health_text, http_status
from muster.errors import ParameterError
from muster.gateway import requests
from muster.gateway.disconnect import while_connected
from muster.gateway.health import DEFAULT, Ask, Health
from muster.gateway.routes.context import JobPath, may_read, parts_of
from muster.gateway.shapes import PROBLEMS, HealthBody
from muster.sql import explain
from muster.sql.plan import Statement

HEALTH_JSON = "application/health+json"
_LEAST_DEADLINE_S = 0.05
router = APIRouter(tags=["health"], dependencies=[Depends(may_read)], responses=PROBLEMS)

Deadline = Annotated[float | None, Query(description="Seconds that the answer may take.", gt=0)]
MinCoverage = Annotated[
    float | None, Query(description="Share of ranks that must answer for a verdict other than unknown.", ge=0, le=1)
]
Lang = Annotated[str, Query(description="Language of the texts: en or zh.")]
OnFail = Annotated[str, Query(description="HTTP status of a failing job: 503, or 200 for clients that drop its body.")]


@router.get(
    "/jobs/{job}/health",
    response_class=Response,
    responses={
        200: {"description": "pass or warn; or the job is starting, finished or suspended.", "model": HealthBody},
        503: {"description": "fail; or unknown while the job runs.", "model": HealthBody},
    },
    summary="Is the job healthy, and if not, which rank, which host, and why?",
)
async def get_health(
    request: Request,
    job: JobPath,
    diagnosis: Annotated[
        list[str], Query(description="Diagnoses to run, by id; `all` for every one. Their parameters are parameters here.")
    ] = list(DEFAULT),  # noqa: B006 - FastAPI copies it
    deadline: Deadline = None,
    min_coverage: MinCoverage = None,
    lang: Lang = "en",
    on_fail: OnFail = "503",
    max_age: Annotated[float, Query(description="Accept a kept verdict of at most so many seconds.", ge=0)] = 0.0,
) -> Response:
    """`Accept: text/plain` gives a short report for a terminal. `Muster-Status` and `Muster-Phase` are headers."""
    parts = parts_of(request)
    ask = Ask(
        job,
        tuple(diagnosis),
        requests.diagnosis_parameters(request),
        _deadline(request, deadline),
        parts.settings.min_coverage if min_coverage is None else min_coverage,
        requests.choice(request, "lang", lang, ("en", "zh")),
        max_age,
    )
    on_fail_status = int(requests.choice(request, "on_fail", on_fail, ("200", "503")))
    health = await while_connected(request, parts.desk.fresh(ask))
    return _respond(request, health, on_fail_status)


@router.get("/jobs/{job}/diagnoses/{id}", summary="One diagnosis in full: steps with rows, findings, and its plan.")
async def get_diagnosis(
    request: Request,
    job: JobPath,
    id: str,
    deadline: Deadline = None,
    min_coverage: MinCoverage = None,
    lang: Lang = "en",
    explain: Annotated[bool, Query(description="Add the plan.")] = False,
) -> Response:
    parts = parts_of(request)
    ask = Ask(
        job,
        (id,),
        requests.diagnosis_parameters(request),
        _deadline(request, deadline),
        parts.settings.min_coverage if min_coverage is None else min_coverage,
        requests.choice(request, "lang", lang, ("en", "zh")),
    )
    health = await while_connected(request, parts.desk.fresh(ask))
    body: dict[str, Any] = health_json(health.evaluation, max_rows=None)
    if explain:
        body["plan"] = await _plan(request, job, id, health)
    return Response(orjson.dumps(body, default=str), media_type="application/json", headers={"Cache-Control": "no-store"})


async def _plan(request: Request, job: str, id: str, health: Health) -> dict[str, Any]:
    parts = parts_of(request)
    steps = parts.catalogue.get(id).diagnosis.steps
    params = health.evaluation.parameters.get(id, {})
    statements = [Statement(step.name, step.sql, used(step.sql, params)) for step in steps]
    plan, _ = await parts.federation.plan(statements, parts.registry.view(job, parts.clock()))
    return explain.as_dict(plan)


def _respond(request: Request, health: Health, on_fail: int) -> Response:
    headers = {
        "Muster-Status": health.body["status"],
        "Muster-Phase": health.body["phase"],
        "Cache-Control": "no-store",
        "Vary": "Accept",
    }
    status = http_status(health.evaluation, on_fail)
    accepted = request.headers.get("accept", "").partition(",")[0].partition(";")[0].strip()
    if accepted == "text/plain":
        return Response(health_text(health.evaluation), status, headers, media_type="text/plain; charset=utf-8")
    return Response(orjson.dumps(health.body, default=str), status, headers, media_type=HEALTH_JSON)


def _deadline(request: Request, given: float | None) -> float:
    settings = parts_of(request).settings
    if given is None:
        return settings.deadline_s
    if not _LEAST_DEADLINE_S <= given <= settings.max_deadline_s:
        bounds = f"from {_LEAST_DEADLINE_S:g} to {settings.max_deadline_s:g} seconds"
        raise ParameterError(f"deadline is {given:g}, it must be {bounds}.", parameter="deadline")
    return given
