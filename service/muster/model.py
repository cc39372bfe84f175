"""The nouns of Muster: plain, typed, immutable. No I/O, standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Severity(StrEnum):
    """Of a finding. `info` never changes a verdict."""

    INFO = "info"
    UNKNOWN = "unknown"
    WARN = "warn"
    FAIL = "fail"


class Status(StrEnum):
    """Of a verdict, from best to worst: pass < unknown < warn < fail."""

    PASS = "pass"
    UNKNOWN = "unknown"
    WARN = "warn"
    FAIL = "fail"


class Phase(StrEnum):
    """Where a job is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    FINISHED = "finished"
    FAILED = "failed"
    SUSPENDED = "suspended"


class RankStatus(StrEnum):
    """Of a rank in the roster (`cluster.nodes.status`)."""

    RUNNING = "running"
    STALE = "stale"  # its agent's heartbeat is overdue
    DEAD = "dead"  # the process is gone and did not finish
    MISSING = "missing"  # expected by the world size, never seen in this generation
    FINISHED = "finished"  # the process ended cleanly


class RankState(StrEnum):
    """What became of a rank in one query. The states are exclusive and sum to the roster."""

    ANSWERED = "answered"
    STALE = "stale"  # answered by a shard whose heartbeat is overdue, or from data of an earlier time
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    UNREACHABLE = "unreachable"
    NO_TABLE = "no_table"
    PRUNED = "pruned"
    MISSING = "missing"


class Kind(StrEnum):
    """What a finding is about."""

    WORKER = "worker"
    STAGE = "stage"
    DATA = "data"
    PROCESS = "process"
    NODE = "node"
    DEVICE = "device"
    NETWORK = "network"
    MEMORY = "memory"
    STORAGE = "storage"
    CODE = "code"
    COVERAGE = "coverage"


class ShardKind(StrEnum):
    """Kinds of shard, in order of priority when two claim the same rank."""

    AGENT = "agent"
    PROBING = "probing"
    TORCH = "torch"
    BUNDLE = "bundle"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column and its DuckDB type, as in DESCRIBE."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One training process of one generation, as the roster knows it.

    Times are aware datetimes (UTC); `last_progress_s` is the age in seconds of its newest row when it was last reported.
    """

    rank: int
    generation: str | None = None
    node: str | None = None
    host: str | None = None
    addr: str | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    role: str | None = None
    role_name: str | None = None
    role_rank: int | None = None
    role_world_size: int | None = None
    pid: int | None = None
    status: RankStatus = RankStatus.MISSING
    started_at: datetime | None = None
    last_seen: datetime | None = None
    last_progress_s: float | None = None


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """Where subqueries can be sent: an agent (many ranks) or one foreign probe.

    `ranks` are the ranks of the viewed generation that this shard owns. `tables` maps `schema.name` to its columns, tags
    included, or is None where the shard has not said. `alive` is False once the heartbeat is overdue.
    """

    id: str
    kind: ShardKind
    addr: str
    host: str
    ranks: tuple[int, ...]
    node_rank: int | None = None
    tables: Mapping[str, tuple[ColumnType, ...]] | None = None
    engine: str | None = None  # "duckdb 2.0.1"
    profile: Mapping[str, str] | None = None
    alive: bool = True
    last_seen: datetime | None = None
    clock_offset_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """What a query is planned against: one job in one generation at one moment.

    `ranks` has one entry for each of 0 … world_size-1 in order, seen or `missing`. `notes` say what is uncertain about the
    roster itself; the coverage of every answer repeats them.
    """

    job: str
    generation: str | None
    world_size: int
    ranks: tuple[RankInfo, ...]
    shards: tuple[ShardInfo, ...]
    taken_at: datetime
    previous_generations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MissingRank:
    """A rank that is not in an answer, and why."""

    rank: int
    host: str | None
    state: RankState
    reason: str
    last_seen: datetime | None = None


@dataclass(frozen=True, slots=True)
class History:
    """How far back the answering ranks remember: the oldest step that all of them still hold, and rows lost so far."""

    oldest_step: int | None = None
    rows_lost: int = 0


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which ranks of the roster an answer rests on."""

    world_size: int
    states: Mapping[RankState, int]
    missing: tuple[MissingRank, ...] = ()
    history: History = History()
    as_of_min: datetime | None = None
    as_of_max: datetime | None = None
    notes: tuple[str, ...] = ()

    @property
    def answered(self) -> int:
        return self.states.get(RankState.ANSWERED, 0)

    @property
    def complete(self) -> bool:
        """Every rank that was asked has answered (pruned ranks were not needed)."""
        return self.answered + self.states.get(RankState.PRUNED, 0) >= self.world_size > 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """Rows that a finding rests on."""

    columns: tuple[ColumnType, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One row that a diagnosis raised. `ranks` are culprits, `victims` the ranks that suffer from them."""

    id: str
    diagnosis: str
    severity: Severity
    kind: Kind
    message: str
    ranks: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    observed: float | str | None = None
    threshold: float | str | None = None
    confidence: str = "medium"  # low | medium | high
    step: str | None = None
    evidence: Evidence = Evidence()
    onset_step: int | None = None
    onset_time: datetime | None = None
    since: datetime | None = None
    confirmations: int = 1
    next: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst of findings and coverage, with the lifecycle."""

    status: Status
    phase: Phase
    summary: str
    findings: tuple[Finding, ...] = field(default=())
