"""One life of one rank as the agent follows it: what its rings said, whether its process is there, how it ended."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from muster.probe.agent import proc
from muster.probe.agent.retention import Kept
from muster.probe.reader import Batch, LifeDir, Meta, OpenSpan, RingReader
from muster.tables import CHECKPOINT, COMM_COLLECTIVE, PROCESS_EXIT, STEP_TIMING, TRACE_EVENT, Table

_STEPS_KEPT = 200
_FINAL_S = 5.0  # how long a life is read on after its end: rows that were torn, a status that comes with the reaping
_WRITTEN: Mapping[str, str] = {
    COMM_COLLECTIVE.full_name: "end_ns",
    TRACE_EVENT.full_name: "time",
    STEP_TIMING.full_name: "end_ns",
    CHECKPOINT.full_name: "ts",
    PROCESS_EXIT.full_name: "ts",
}
"""The column that says, in ns since the epoch, when a row was written."""
_ROUTINE_PHASES = frozenset({"forward", "backward", "optimizer", "data"})


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: kind is exit, signal, exception or vanished. `clean`: it meant to end here."""

    kind: str
    at_ns: int
    code: int | None = None
    signal: int | None = None
    exception: str | None = None
    message: str | None = None
    last_step: int | None = None

    @property
    def clean(self) -> bool:
        return self.kind == "exit" and self.code in (None, 0)

    @property
    def text(self) -> str | None:
        parts = [p for p in (self.exception, self.message) if p]
        return ": ".join(parts) or None


@dataclass(slots=True)
class LastRow:
    """Newest completed operation of the main thread."""

    op: str | None = None
    pg: str | None = None
    seq: int | None = None


class Life:
    """Follows one life directory. `update` reads what is new; everything else is what is known since."""

    def __init__(self, number: int, directory: LifeDir, boot_id: str | None) -> None:
        self.number = number
        self.directory = directory
        self.meta: Meta | None = None
        self.alive = False
        self.exit: Exit | None = None
        self.last_row_ns: int | None = None  # of the main thread
        self.last_sign_ns: int | None = None  # of any row, operation or span
        self.last = LastRow()
        self.last_local_step: int | None = None
        self.last_global_step: int | None = None
        self.lost: dict[str, int] = {}  # rows overwritten or torn before they were read, by table
        self.kept: dict[str, Kept] = {}  # rows in the store, by table
        self.left_out: dict[str, Mapping[str, str]] = {}  # columns that the store does not take from it, by table: why
        self._boot_id = boot_id
        self._readers: dict[str, RingReader] = {}
        self._durations: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._exit_row: Exit | None = None
        self._pidfd: int | None = None
        self._gone_ns: int | None = None
        self._over_since: float | None = None
        self._status: int | None = None
        self._names: set[str] = set()
        self._in_flight: list[dict[str, Any]] = []

    @property
    def rank(self) -> int:
        return self.directory.rank

    @property
    def rows_lost(self) -> int:
        return sum(self.lost.values())

    @property
    def same_machine_boot(self) -> bool:
        return self.meta is not None and self.meta.boot_id == self._boot_id

    @property
    def median_step_s(self) -> float | None:
        return statistics.median(self._durations) if self._durations else None

    @property
    def status(self) -> str:
        if self.alive:
            return "running"
        return "finished" if self.exit is not None and self.exit.clean else "dead"

    def update(self) -> list[tuple[Table, dict[str, list[Any]], int]]:
        """Read liveness, meta, operations in flight and new rows; returns the new rows by table.

        In this order: whoever has given up the lock has written its last word, and an operation that ends meanwhile is in
        flight or a row or both, never neither (the store shows it once).
        """
        held = self.directory.alive()
        if not held and self._over_since is not None and time.monotonic() - self._over_since > _FINAL_S:
            return []
        self.meta = self.directory.meta() or self.meta
        if self.meta is not None:
            self._names.add(self.meta.generation)
        self._in_flight = _rows(self.directory.in_flight())
        rows = self._read_rows()
        for row in self._in_flight:
            self._sign(row["wait_start_ns"] or row["start_ns"])
        self._settle(held)
        return rows

    def was_called(self, generation: str) -> bool:
        """Whether the life is, or was before its process group came up, of this generation."""
        return generation in self._names

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self.directory.close()

    def watch(self) -> int | None:
        """A descriptor that becomes readable the moment the process ends; opened once, None where there is none."""
        if self._pidfd is None and self.alive and self.meta is not None and self.same_machine_boot:
            self._pidfd = proc.open_pidfd(self.meta.pid, self.meta.start_ticks)
        return self._pidfd

    def note_gone(self, at_ns: int) -> None:
        """The process ended at this moment (by its descriptor)."""
        if self._gone_ns is None:
            self._gone_ns = at_ns

    def thread(self) -> proc.ThreadState:
        """State of its main thread now; all None unless it is surely this process."""
        nothing = proc.ThreadState(None, None, None)
        if self.meta is None or not self.same_machine_boot:
            return nothing
        seen = proc.main_thread(self.meta.pid)
        return seen if self.meta.start_ticks in (None, seen.start_ticks) else nothing

    def in_flight(self) -> list[dict[str, Any]]:
        """Operations in flight at the last `update`, oldest first."""
        return self._in_flight

    def main_spans(self) -> list[OpenSpan]:
        return [s for s in self.directory.open_spans() if s.is_main_thread]

    def is_main(self, thread_id: int | None) -> bool:
        return self.meta is not None and thread_id in (None, self.meta.main_thread_id)

    def _wait_status(self) -> int | None:
        """How the process ended, as the kernel tells its parent; remembered, since it can be asked only for a while."""
        if self._status is None and self.meta is not None and self.same_machine_boot:
            if self._pidfd is not None:
                self._status = proc.exit_status(self._pidfd)
            if self._status is None:
                self._status = proc.zombie_status(self.meta.pid, self.meta.start_ticks)
        return self._status

    def _settle(self, held: bool) -> None:
        """After the rows are read: whether it is alive, or how it ended.

        Who has lost the lock without having stopped, and is still there with all its memory, has closed the lock's file by
        mistake (a closerange of everything does it): it lives. One that was dead before it was first looked at ended when
        it last gave a sign, never when it began: the earliest end is taken for the first death.
        """
        seen_alive, self.alive = self.alive, held or self._only_lock_lost()
        if self.alive:
            self.exit = None
            if self._over_since is not None:  # it could not be told for a while
                self._over_since = self._gone_ns = None
            return
        if self._gone_ns is None:
            self._gone_ns = time.time_ns() if seen_alive else self._last_sign()
        if self._over_since is None:
            self._over_since = time.monotonic()
        self.exit = self._exit_of(self._wait_status())

    def _last_sign(self) -> int:
        for span in self.directory.open_spans():
            self._sign(span.start_ns)
        if self.last_sign_ns is not None:
            return self.last_sign_ns
        return self.meta.started_ns if self.meta is not None else time.time_ns()

    def _only_lock_lost(self) -> bool:
        meta = self.meta
        if meta is None or self._exit_row is not None or meta.stopped_ns is not None or not self.same_machine_boot:
            return False
        return meta.start_ticks is not None and proc.has_memory(meta.pid, meta.start_ticks)

    def _read_rows(self) -> list[tuple[Table, dict[str, list[Any]], int]]:
        found = []
        for table in self.directory.tables():
            reader = self._readers.get(table.full_name)
            if reader is None:
                reader = self._readers[table.full_name] = self.directory.reader(table)
            batch = reader.read_new()
            if batch.lost:
                self.lost[table.full_name] = self.lost.get(table.full_name, 0) + batch.lost
            if batch.rows:
                columns = dict(batch.columns)
                self._learn(reader.table.full_name, columns, batch.rows)
                found.append((reader.table, columns, batch.rows))
        return found

    def _learn(self, table: str, columns: dict[str, list[Any]], rows: int) -> None:
        """Take from new rows what process.rank needs. A recorder of another version may lack columns."""

        def of(*names: str) -> Iterator[tuple[Any, ...]]:
            return zip(*(columns.get(n) or [None] * rows for n in names), strict=True)

        if table in _WRITTEN:
            self._sign(max((t for (t,) in of(_WRITTEN[table]) if t is not None), default=None))
        if table == COMM_COLLECTIVE.full_name:
            for thread, end, op, pg, seq in of("thread_id", "end_ns", "op", "pg_name", "seq"):
                if self.is_main(thread):
                    self._moved(end)
                    self.last = LastRow(op, pg, seq)
        elif table == TRACE_EVENT.full_name:
            for thread, at in of("thread_id", "time"):
                if self.is_main(thread):
                    self._moved(at)
        elif table == STEP_TIMING.full_name:
            for local, step, seconds, end, phase in of("local_step", "global_step", "step_duration_sec", "end_ns", "phase"):
                self._moved(end)
                self.last_local_step = local if local is not None else self.last_local_step
                if step is not None and (self.last_global_step is None or step > self.last_global_step):
                    self.last_global_step = step
                if seconds is not None and phase is None:
                    self._durations.append(seconds)
        elif table == PROCESS_EXIT.full_name:
            for values in of("kind", "ts", "code", "signal", "exception", "message", "last_step"):
                self._exit_row = Exit(*values)

    def _sign(self, at_ns: int | None) -> None:
        if at_ns is not None and (self.last_sign_ns is None or at_ns > self.last_sign_ns):
            self.last_sign_ns = at_ns

    def _moved(self, at_ns: int | None) -> None:
        if at_ns is not None and (self.last_row_ns is None or at_ns > self.last_row_ns):
            self.last_row_ns = at_ns

    def _exit_of(self, status: int | None) -> Exit:
        """Its own last words, else what the kernel says, else just that it is gone."""
        row, gone = self._exit_row, self._gone_ns or time.time_ns()
        stopped = self.meta.stopped_ns if self.meta is not None else None
        if stopped is not None and row is None:  # what became of the process since is no longer recorded
            return Exit("exit", stopped, message="recording was stopped", last_step=self.last_global_step)
        if status is not None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            name = signal.Signals(number).name if number in signal.valid_signals() else str(number)
            return Exit("signal", gone, signal=number, message=f"killed by {name}", last_step=self.last_global_step)
        code = os.WEXITSTATUS(status) if status is not None else None
        if row is not None:
            return row if code is None or row.code is not None else Exit(
                row.kind, row.at_ns, code, row.signal, row.exception, row.message, row.last_step
            )  # fmt: skip
        if code is not None:
            return Exit("exit", gone, code, last_step=self.last_global_step)
        return Exit("vanished", gone, last_step=self.last_global_step)


def _rows(batch: Batch) -> list[dict[str, Any]]:
    names = list(batch.columns)
    rows = [dict(zip(names, values, strict=True)) for values in zip(*batch.columns.values(), strict=True)]
    return sorted(rows, key=lambda r: r["start_ns"] or 0)


def long_phase(spans: list[OpenSpan]) -> OpenSpan | None:
    """The outermost open span whose phase may rightly take long: checkpoint, eval, compile."""
    return next((s for s in spans if s.phase and s.phase not in _ROUTINE_PHASES), None)
