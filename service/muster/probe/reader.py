"""Reading what a recorder wrote, from another process: `pread` only, never a mapping, and never an exception for bad data.

    for life in discover(root, job):            # one per rank and life, oldest first within a rank
        life.meta(), life.alive(), life.tables()
        reader = life.reader("python.comm_collective")
        batch = reader.read_new()               # rows since the last call

Files may be cut short, damaged, or of a version that this code does not know: then the reader counts an error
(`LifeDir.errors()`), gives what it can, and goes on.

To see every operation exactly once read `in_flight()` *before* the rings and drop an in-flight row whose
(`thread_id`, `start_ns`) is among the completed ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.tables import Table


@dataclass(frozen=True, slots=True)
class Meta:
    """Who wrote a life directory. What is not known is None.

    `generation_final` is False until the process group is up and its shared id is known; `generation` may change once.
    `started_ns` is the clock of the host when recording began. `step_source` is user, optimizer, ddp, … or None so far.
    """

    job: str
    rank: int
    world_size: int | None
    life: str
    generation: str
    generation_final: bool
    pid: int
    start_ticks: int | None
    boot_id: str | None
    host: str
    node: str
    started_ns: int
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    role: str | None = None
    role_name: str | None = None
    role_rank: int | None = None
    role_world_size: int | None = None
    step_source: str | None = None
    gateway: str | None = None
    main_thread_id: int | None = None
    collectors: tuple[str, ...] = ()
    format: int = 1


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span that has begun and not ended. Times are nanoseconds since the epoch."""

    thread_id: int
    span_id: int
    name: str | None
    phase: str | None
    start_ns: int
    is_main_thread: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows by column: equally long lists in the order of the table's columns. `lost` counts rows that were overwritten or
    torn before they could be read, since the call before."""

    columns: Mapping[str, list[Any]]
    rows: int
    lost: int


class RingReader:
    """Reads one table of one life. Not for several threads at once."""

    table: Table
    lost: int

    def read_new(self, max_rows: int = 1_000_000) -> Batch:
        """The rows written since the last call, oldest first; the first call gives all that the ring still holds."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class LifeDir:
    """One life of one rank: the directory of one recording process."""

    path: Path
    rank: int
    life: str

    def meta(self) -> Meta | None:
        """Read anew at each call; None while it cannot be read (counted)."""
        raise NotImplementedError

    def alive(self) -> bool:
        """True while the process that writes *this* life holds the owner lock (tested with F_GETLK, never acquired)."""
        raise NotImplementedError

    def tables(self) -> list[Table]:
        """Every table that has a ring, with its self-described columns; custom tables too."""
        raise NotImplementedError

    def reader(self, table: Table | str) -> RingReader:
        """A new reader of a table's ring. Each reader has its own position."""
        raise NotImplementedError

    def in_flight(self) -> Batch:
        """Operations that have begun and not ended, as rows of python.comm_collective with end_ns and duration_ms NULL."""
        raise NotImplementedError

    def open_spans(self) -> list[OpenSpan]:
        """Spans that are open now, outermost first within a thread."""
        raise NotImplementedError

    def errors(self) -> Mapping[str, int]:
        """Errors by place: those that the recorder counted, and those of this reader as `reader.…`."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def roots(directory: str | Path | None = None) -> Sequence[Path]:
    """Where recorders of this user may write, in order: `directory` (or MUSTER_DIR) alone when given, else
    /dev/shm/muster-<uid> and /tmp/muster-<uid>. An agent looks into all of them."""
    raise NotImplementedError


def discover(root: str | Path, job: str) -> list[LifeDir]:
    """All lives of a job below a root, by rank and then by start. Directories of other owners are left out."""
    raise NotImplementedError
