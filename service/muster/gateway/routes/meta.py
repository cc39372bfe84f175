"""The service itself: alive, ready, metrics."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from starlette.responses import PlainTextResponse, Response

from muster.gateway import requests
from muster.gateway.routes.context import may_read_any, parts_of
from muster.gateway.shapes import PROBLEMS, Ready

router = APIRouter(tags=["service"], responses=PROBLEMS)


@router.get("/livez", response_class=PlainTextResponse, summary="The process answers.")
async def get_livez(request: Request) -> str:
    requests.only(request, ())
    return "ok\n"


@router.get("/readyz", summary="The gateway can evaluate jobs; how its state is kept.")
async def get_readyz(request: Request) -> Ready:
    requests.only(request, ())
    parts = parts_of(request)
    state = parts.store.problem or ("kept" if parts.store.path is not None else "memory")
    return Ready(status="ready", jobs=len(parts.registry.jobs(parts.clock())), state=state)


@router.get(
    "/metrics",
    response_class=Response,
    dependencies=[Depends(may_read_any)],
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text format."}},
    summary="Metrics for Prometheus.",
)
async def get_metrics(request: Request) -> Response:
    requests.only(request, ())
    parts = parts_of(request)
    jobs = [summary.job for summary in parts.registry.jobs(parts.clock())]
    parts.metrics.jobs.set(len(jobs))
    visible = parts.auth.visible(request, jobs)
    text = await anyio.to_thread.run_sync(parts.metrics.text, None if len(visible) == len(jobs) else visible)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
