"""What a source is, what it is told, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from muster.tables import Table

STALLED_S = 5.0
STALLED_STEPS = 5.0


class Unavailable(Exception):
    """A source cannot work on this machine; the text says why and what would help."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the agent is. `proc` and `sys`: roots of those file systems."""

    job: str
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """A training process that runs on this node now, or (`alive` False) has ended. `life`: the agent's number of it.

    `age_s`: since its main thread last wrote or began anything; `directory`: where its recorder writes.
    """

    life: int
    rank: int
    pid: int
    start_ticks: int | None
    main_thread_id: int | None
    directory: Path
    alive: bool
    started_ns: int
    age_s: float | None
    median_step_s: float | None

    @property
    def stalled(self) -> bool:
        """Whether it has done nothing for so long that it is worth a closer look: 5 s, and 5 times its median step."""
        limit = max(STALLED_S, STALLED_STEPS * (self.median_step_s or 0.0))
        return self.alive and self.age_s is not None and self.age_s > limit


@dataclass(frozen=True, slots=True)
class Rows:
    """New rows of one table. `life`: of which process; None for those of the node. Columns left out are NULL."""

    table: Table
    rows: Sequence[Mapping[str, Any]]
    life: int | None = None


class Source(Protocol):
    """One thing that is looked at every `every_s` seconds. `tables` are offered from its opening on, also without rows."""

    name: str
    tables: tuple[Table, ...]
    every_s: float

    def look(self, targets: Sequence[Target]) -> list[Rows]:
        """What is new. Called by one thread at a time; may block for a few seconds at most. An exception is logged and
        counted, and the next call comes as if nothing had been."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...
