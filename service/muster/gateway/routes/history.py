"""`GET /jobs/{job}/health/history`: how the verdict on a job came to be."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from muster.gateway import requests
from muster.gateway.routes.context import JobPath, may_read, parts_of
from muster.gateway.shapes import PROBLEMS, Body, Json

router = APIRouter(tags=["health"], dependencies=[Depends(may_read)], responses=PROBLEMS)


class KeptFinding(Body):
    """A finding as it is remembered."""

    diagnosis: str
    id: str
    severity: str | None = None
    kind: str | None = None
    ranks: list[int] = Field(description="Culprits.")
    hosts: list[str] | None = None
    message: str | None = None
    confidence: str | None = None
    onset: dict[str, Json] | None = Field(default=None, description="Step and time, as they were first seen.")
    since: datetime | None = None
    confirmations: int | None = Field(default=None, description="Background evaluations in a row that found it.")


class Change(Body):
    """A background evaluation that differed from the one before it."""

    at: datetime
    status: str
    was: str | None
    phase: str
    generation: str | None
    step: int | None
    summary: str | None
    appeared: list[KeptFinding]
    cleared: list[KeptFinding]


class HistoryBody(Body):
    job: str
    status: str | None = Field(description="The last background verdict; null where there was none.")
    since: datetime | None
    confirmations: int
    phase: str | None
    generation: str | None
    evaluated_at: datetime | None
    findings: list[KeptFinding] = Field(description="Findings that stand.")
    changes: list[Change] = Field(description="Newest first.")
    changes_kept: int
    changes_dropped: int


@router.get("/jobs/{job}/health/history", summary="How the verdict on a job came to be: changes, newest first.")
async def get_history(
    request: Request,
    job: JobPath,
    limit: Annotated[int, Query(description="Most changes to give, 1 to 200.", ge=1, le=200)] = 50,
) -> HistoryBody:
    """Only background evaluations count, so it does not depend on who asks. Survives a restart of the gateway where a state
    file is set."""
    requests.only(request, ("limit",))
    parts = parts_of(request)
    parts.registry.view(job, parts.clock())
    return HistoryBody.model_validate(parts.desk.history(job, limit))
