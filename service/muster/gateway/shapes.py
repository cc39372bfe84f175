"""Bodies of answers, as pydantic models: what openapi/gateway.yaml says of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Json = Any


class Body(BaseModel):
    """Base: members may be added in later versions."""

    model_config = ConfigDict(extra="allow")


class Problem(Body):
    """An error (RFC 9457). `code` is stable."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str | None = None


class Missing(Body):
    rank: int
    host: str | None
    state: str
    reason: str
    last_seen: datetime | None = None


class CoverageBody(Body):
    """Which ranks an answer rests on."""

    world_size: int
    answered: int
    complete: bool
    states: dict[str, int]
    missing: list[Missing]
    history: dict[str, int | None]
    as_of: dict[str, datetime | None]


class ColumnBody(Body):
    name: str
    type: str = Field(description="DuckDB type")


class EvidenceBody(Body):
    columns: list[ColumnBody]
    rows: list[list[Json]]


class FindingBody(Body):
    """One row that a diagnosis raised. `ranks` are culprits; `victims` suffer from them."""

    id: str
    severity: Literal["info", "unknown", "warn", "fail"]
    kind: str
    ranks: list[int]
    victims: list[int]
    hosts: list[str]
    message: str
    observed: Json = None
    threshold: Json = None
    confidence: str
    step: str | None = None
    evidence: EvidenceBody
    next: list[str]
    since: str | None = None


class HealthBody(Body):
    """The health of a job (application/health+json, with extensions)."""

    status: Literal["pass", "warn", "fail", "unknown"]
    phase: Literal["starting", "running", "checkpoint", "eval", "finished", "failed", "suspended"]
    summary: str
    findings: list[FindingBody]
    drain_candidates: list[dict[str, Json]]
    recommendation: str
    last_checkpoint: dict[str, Json] | None = None
    coverage: CoverageBody
    generation: str | None


class AnswerColumn(ColumnBody):
    exactness: Literal["exact", "float", "approx", "arbitrary"]


class QueryAnswer(Body):
    """The answer to a query. Integers beyond ±2^53 and DECIMAL are texts; NaN and infinities are texts too."""

    columns: list[AnswerColumn]
    rows: list[list[Json]]
    coverage: CoverageBody
    elapsed_ms: float
    bytes_moved: int
    waves: int


class ExplainAnswer(Body):
    plan: dict[str, Json]
    tree: str


class JobBody(Body):
    job: str
    generation: str | None
    world_size: int
    statuses: dict[str, int]
    nodes: int
    first_seen: datetime
    last_seen: datetime


class RankBody(Body):
    rank: int
    status: str
    host: str | None
    node: str | None
    addr: str | None
    pid: int | None
    last_seen: datetime | None
    last_progress_s: float | None


class JobDetail(JobBody):
    ranks: list[RankBody]
    previous_generations: list[str]


class NodeBody(Body):
    node: str
    host: str
    addr: str
    kind: str
    alive: bool
    ranks: list[int]
    engine: str | None
    clock_offset_s: float | None
    first_seen: datetime
    last_seen: datetime


class TableBody(Body):
    table: str
    columns: list[ColumnBody]
    meaning: str | None
    ranks: list[int] | None = Field(description="Ranks whose probe offers it; null where that is not known.")
    complete: bool


class Ready(Body):
    status: Literal["ready"]
    jobs: int
    state: str = Field(description="`kept`, `memory`, or what is wrong with the state file.")


PROBLEMS: dict[int | str, dict[str, Any]] = {
    "default": {
        "model": Problem,
        "description": "An error.",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
