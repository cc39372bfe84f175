"""The recorder of one process: its tables, its collective log, its spans and steps. Once made, it never raises."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from threading import RLock
from time import perf_counter_ns, time_ns
from typing import Any

from muster.probe.collectives import OPEN, SIGNATURE, CollectiveLog
from muster.probe.counter import StepCounter, ThreadState
from muster.probe.errorlog import ErrorLog
from muster.probe.identity import Identity
from muster.probe.layout import MAX_COLUMNS
from muster.probe.life import Life
from muster.probe.ring import Ring
from muster.probe.slots import SlotFile
from muster.probe.spans import Spans
from muster.probe.steps import Steps
from muster.tables import CHECKPOINT, COMM_COLLECTIVE, PROCESS_EXIT, REGISTRY, STEP_TIMING, TRACE_EVENT, Column, Table

SHARES: Mapping[str, float] = {
    COMM_COLLECTIVE.full_name: 0.45,
    TRACE_EVENT.full_name: 0.20,
    STEP_TIMING.full_name: 0.06,
    CHECKPOINT.full_name: 0.01,
    PROCESS_EXIT.full_name: 0.01,
}
"""Share of the byte budget for the tables that every life has; what is left is for further ones."""
OTHER_SHARE = 0.04
MIN_RING = 16 << 10
MOST_SLOTS, FEW_SLOTS = 256, 64
ROOMY = 1 << 20
CUSTOM_TEXT_BYTES = 128
CUSTOM_TYPES: Mapping[type, str] = {int: "BIGINT", float: "DOUBLE", str: "VARCHAR", bool: "BOOLEAN"}
_FIRST: Mapping[str, tuple[str, ...]] = {COMM_COLLECTIVE.full_name: SIGNATURE}
_IN_FLIGHT_COLUMNS = tuple(c for c in COMM_COLLECTIVE.columns if c.name in SIGNATURE + OPEN)
_TABLE_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}")
_COLUMN_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class TableWriter:
    """Writes rows of one table. Without a ring (no room, wrong name) it takes rows and drops them."""

    def __init__(self, table: Table, ring: Ring | None, errors: ErrorLog) -> None:
        self.table = table
        self._ring = ring
        self._errors = errors
        self._names = tuple(c.name for c in table.columns)

    def write(self, row: tuple[Any, ...]) -> None:
        """Write one row: one value per column, in the table's column order; None is NULL. Never raises: what cannot be
        stored is NULL or dropped, and counted."""
        if self._ring is not None:
            self._ring.write(row)

    def row(self, /, **values: Any) -> None:
        """Write one row by column names; what is not named is NULL. An unknown name is counted as an error."""
        if self._ring is None:
            return
        try:
            row = tuple([values.pop(name, None) for name in self._names])
            if values:
                self._errors.count(f"row.{self.table.full_name}", f"unknown columns {sorted(values)}")
            self._ring.write(row)
        except Exception as error:
            self._errors.count(f"row.{self.table.full_name}", error)


class Recorder:
    """What collectors get. `active` is False after `stop()`, and in a forked child: then hooks must do nothing but call
    through. All parts are always there and never raise."""

    def __init__(self, life: Life, identity: Identity) -> None:
        """Makes the files of every table that each life has. Raises OSError when there is no room."""
        self.active = True
        self.identity = identity
        self.life = life
        self.errors = life.errors
        self.counter = StepCounter()
        self.threads = ThreadState()
        self.collectors: tuple[str, ...] = ()
        self._lock = RLock()
        self._rings: dict[str, Ring] = {}
        self._writers: dict[str, TableWriter] = {}
        slots = MOST_SLOTS if life.left >= ROOMY else FEW_SLOTS
        self._in_flight = life.in_flight(_IN_FLIGHT_COLUMNS, slots, first=SIGNATURE)
        self._open_spans = life.open_spans(slots)
        self._budget = life.left
        rings = {name: self._make(REGISTRY[name]) for name in SHARES}
        started_ns = life.origin.started_ns
        count = self.errors.count
        self.collectives = CollectiveLog(
            identity, self.counter, self.threads, rings[COMM_COLLECTIVE.full_name], self._in_flight, self.errors
        )
        self.spans = Spans(
            identity, started_ns, self.counter, self.threads, rings[TRACE_EVENT.full_name], self._open_spans, self.errors
        )
        started = (perf_counter_ns() - (time_ns() - started_ns), started_ns)
        self.steps = Steps(
            identity, started, self.counter, self.spans, rings[STEP_TIMING.full_name], self.errors, self.write_meta
        )
        self._count = count
        self.write_meta()

    def table(self, full_name: str) -> TableWriter:
        """The writer of a table of the registry, made (with its ring) when first asked for. An unknown name or no room is
        counted, and the writer drops its rows."""
        try:
            return self._writer(REGISTRY[full_name])
        except Exception as error:
            self._count(f"table.{full_name}"[:64], error)
            return TableWriter(Table("none", "none", "", ()), None, self.errors)

    def custom(self, full_name: str, columns: Mapping[str, type]) -> TableWriter:
        """The writer of a table of the script's own; column types int, float, str, bool. The same name with other columns,
        a name of the registry or one that SQL would not take as it is: counted, and the writer drops its rows."""
        try:
            return self._writer(custom_table(full_name, columns))
        except Exception as error:
            self._count(f"table.{full_name}"[:64], error)
            return TableWriter(Table("none", "none", "", ()), None, self.errors)

    def set_generation(self, generation: str) -> None:
        """The process group is up and this is the id that all ranks share: final from now on."""
        if self.identity.generation_final or not self.active:
            return
        self.identity.generation = generation
        self.identity.generation_final = True
        self.write_meta()

    def set_identity(self, *, rank: int | None = None, world_size: int | None = None, role: str | None = None) -> None:
        """What became known later: world size, and the parallel key of this rank, such as dp=2,pp=1,tp=0."""
        if world_size is not None:
            self.identity.world_size = world_size
        if role is not None:
            self.identity.role = role
        if rank is not None and rank != self.identity.rank:
            self._count("identity", f"recording as rank {self.identity.rank}, the process group says {rank}")
        self.collectives.forget()
        self.write_meta()

    def checkpoint(
        self,
        *,
        kind: str,
        duration_ms: float,
        nbytes: int | None = None,
        path: object = None,
        step: int | None = None,
    ) -> None:
        """Write a row of python.checkpoint. The path is hashed, never kept. `step` is by default the step in progress."""
        try:
            digest = None if path is None else hashlib.sha256(str(path).encode("utf-8", "replace")).hexdigest()[:16]
            number = self.counter.global_step if step is None else step
            row = (time_ns(), self.identity.rank, number, kind, duration_ms, nbytes, digest)
            self._rings[CHECKPOINT.full_name].write(row)
        except Exception as error:
            self._count("checkpoint", error)

    def count_error(self, where: str, error: BaseException | str) -> None:
        """Count an error of a collector; the last message per place is kept and shown by the agent."""
        self.errors.count(where, error)

    def write_meta(self, *, stopped_ns: int | None = None) -> None:
        """Write what is known of this life anew."""
        if not self.active:
            return
        try:
            with self._lock:
                self.life.write_meta(
                    {
                        "step_source": self.steps.source,
                        "main_thread_id": self.life.origin.pid,
                        "collectors": list(self.collectors),
                        "stopped_ns": stopped_ns,
                    }
                )
        except Exception as error:
            self._count("meta", error)

    def close(self) -> None:
        """Stop writing and give the lock up. The files stay for the agent."""
        if self.active:
            self.spans.finish()
            self.write_meta(stopped_ns=time_ns())
            self.active = False
            self._let_go()
            self.life.close()

    def abandon(self) -> None:
        """In a forked child: never write again. The parent's files and lock are untouched."""
        self.active = False
        self._let_go()
        self.life.abandon()

    def _let_go(self) -> None:
        for ring in self._rings.values():
            ring.close()
        files: tuple[SlotFile, ...] = (self._in_flight, self._open_spans)
        for file in files:
            file.close()

    def _writer(self, table: Table) -> TableWriter:
        with self._lock:
            known = self._writers.get(table.full_name)
            if known is not None:
                if [(c.name, c.type) for c in known.table.columns] != [(c.name, c.type) for c in table.columns]:
                    raise ValueError(f"table {table.full_name} exists with other columns")
                return known
            ring = self._rings.get(table.full_name) or (self._make(table) if self.active else None)
            made = TableWriter(table, ring, self.errors)
            self._writers[table.full_name] = made
            return made

    def _make(self, table: Table) -> Ring:
        share = int(self._budget * SHARES.get(table.full_name, OTHER_SHARE))
        first = _FIRST.get(table.full_name, ())
        ring = self.life.ring(table, max(share, MIN_RING), self.errors.count, first=first)
        self._rings[table.full_name] = ring
        return ring


def custom_table(full_name: str, columns: Mapping[str, type]) -> Table:
    """The table that a script declares. Raises ValueError naming what is wrong with it."""
    if not _TABLE_NAME.fullmatch(full_name):
        raise ValueError(f"table name {full_name!r} must be schema.name in small letters, digits and _")
    if full_name in REGISTRY or full_name.split(".")[0] in ("cluster", "global", "information_schema"):
        raise ValueError(f"table name {full_name!r} is taken")
    if not 0 < len(columns) <= MAX_COLUMNS:
        raise ValueError(f"a table has 1 to {MAX_COLUMNS} columns")
    for name, kind in columns.items():
        if not _COLUMN_NAME.fullmatch(name):
            raise ValueError(f"column name {name!r} must be small letters, digits and _, beginning with a letter")
        if kind not in CUSTOM_TYPES:
            raise ValueError(f"column {name} has type {kind!r}; int, float, str and bool are known")
    schema, _, name = full_name.partition(".")
    made = tuple(
        Column(n, CUSTOM_TYPES[k], "", text_bytes=CUSTOM_TEXT_BYTES if k is str else 0)  # type: ignore[arg-type]
        for n, k in columns.items()
    )
    return Table(schema, name, "table of the training script", made)
