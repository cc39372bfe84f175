"""Shapes that cross the wire between gateway and agent: `GET /v1/node`, `POST /v1/query`, registration.

Changes are additive only; `PROTOCOL` is raised when a peer must know.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

PROTOCOL = 1
ARROW_STREAM = "application/vnd.apache.arrow.stream"
MAX_BODY_BYTES = 1 << 20
MAX_SQL_BYTES = 16 << 10
MAX_DEADLINE_MS = 600_000

JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
NodeId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,253}$")]
ShortText = Annotated[str, StringConstraints(max_length=512)]
Rank = Annotated[int, Field(ge=0, lt=1 << 20)]


class Shape(BaseModel):
    """Base: unknown members are ignored, so that an older peer can read a newer one."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Engine(Shape):
    """The SQL engine of a shard and the settings that decide what its answers mean."""

    name: ShortText
    version: ShortText
    profile: dict[str, str] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and version, such as `duckdb 2.0.1`, as `engine.engine_name` writes its own."""
        return f"{self.name} {self.version}"


class NodeRank(Shape):
    """One rank as its agent reports it. Times are UTC."""

    rank: Rank
    generation: ShortText | None = None
    local_rank: Rank | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    role: ShortText | None = None
    role_name: ShortText | None = None
    role_rank: int | None = None
    role_world_size: int | None = None
    pid: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    status: Literal["running", "stale", "dead", "missing", "finished"] = "running"
    started_at: AwareDatetime | None = None
    last_seen: AwareDatetime | None = None
    last_progress_s: float | None = None


class TableColumn(Shape):
    name: ShortText
    type: ShortText


class NodeTable(Shape):
    schema_: ShortText = Field(alias="schema")
    name: ShortText
    columns: list[TableColumn] = Field(max_length=1024)

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class NodeInfo(Shape):
    """Answer of `GET /v1/node`."""

    protocol: int = PROTOCOL
    engine: Engine
    job: JobId
    node: NodeId
    host: ShortText
    now: AwareDatetime
    world_size: int | None = None
    ranks: list[NodeRank] = Field(default_factory=list, max_length=4096)
    tables: list[NodeTable] = Field(default_factory=list, max_length=1024)


class SubQuery(Shape):
    """One statement for the shard. `id` comes back in the metadata of its Arrow stream."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    sql: Annotated[str, StringConstraints(min_length=1, max_length=4 * MAX_SQL_BYTES)]
    deadline_ms: int = Field(default=4000, gt=0, le=MAX_DEADLINE_MS)
    max_rows: int = Field(default=1_000_000, ge=0)
    max_bytes: int = Field(default=64 << 20, ge=0)


class RankRef(Shape):
    rank: Rank
    generation: ShortText


class QueryRequest(Shape):
    """Body of `POST /v1/query`: the subqueries of one wave. `ranks` null means all ranks of the newest generation."""

    queries: list[SubQuery] = Field(min_length=1, max_length=256)
    ranks: list[RankRef] | None = Field(default=None, max_length=4096)
    deadline_ms: int = Field(default=4000, gt=0, le=MAX_DEADLINE_MS)


class Registration(Shape):
    """Body of `PUT /jobs/{job}/nodes/{node}`: registration and heartbeat in one."""

    addr: ShortText
    kind: Literal["agent", "probing", "torch"] = "agent"
    host: ShortText
    world_size: int | None = Field(default=None, gt=0, le=1 << 20)
    node_rank: int | None = None
    nodes: int | None = None
    now: AwareDatetime | None = None
    engine: Engine | None = None
    ranks: list[NodeRank] = Field(default_factory=list, max_length=4096)
    tables: list[NodeTable] | None = Field(default=None, max_length=1024)


class RegistrationAnswer(Shape):
    heartbeat_s: float
    expires_s: float
