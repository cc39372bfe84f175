"""Where the process is in its training: step numbers and what the step in progress has cost so far."""

from __future__ import annotations

from threading import get_ident, get_native_id, local, main_thread
from typing import Any

BLOCKING_SOURCES = frozenset({"sync", "wait", "device"})
"""Timing sources whose times say how long the caller was blocked. `enqueue` says only how long the launch took."""


class StepCounter:
    """Numbers of the step in progress and sums over it. Steps count from 1; all collectors share one instance.

    `local_step`, `global_step`: of the step in progress, which every row written now carries. `completed`: steps done.
    `micro_step`, `micro_batches`: None until somebody counts micro batches with `micro()`.
    `comm_source`: what sees the communication of this process (patch, ddp, dispatch, user), None for nothing.
    """

    __slots__ = (
        "blocked_ns", "blocked_unknown", "comm_source", "completed", "global_step", "local_step", "micro_batches",
        "micro_in_step", "micro_step", "notes", "phase_ns", "phases_seen",
    )  # fmt: skip

    def __init__(self) -> None:
        self.completed = 0
        self.local_step = 1
        self.global_step = 1
        self.micro_step: int | None = None
        self.micro_batches: int | None = None
        self.micro_in_step = 0
        self.comm_source: str | None = None
        self.blocked_ns = 0
        self.blocked_unknown = False
        self.phase_ns: dict[str, int] = {}
        self.phases_seen: set[str] = set()
        self.notes: dict[str, object] = {}

    def watch_comm(self, source: str) -> None:
        """Say that communication is seen from now on, so that a step without any counts as 0 blocked, not as NULL."""
        self.comm_source = source

    def add_blocked(self, nanoseconds: int, timing_source: str) -> None:
        """Add time that the main thread was blocked in communication. One operation whose timing source cannot tell
        makes the sum of the whole step unknown."""
        if timing_source in BLOCKING_SOURCES:
            self.blocked_ns += nanoseconds
        else:
            self.blocked_unknown = True

    def add_phase(self, phase: str, nanoseconds: int) -> None:
        """Add time of a span of the main thread with this phase."""
        self.phase_ns[phase] = self.phase_ns.get(phase, 0) + nanoseconds

    def micro(self, count: int = 1) -> None:
        """Count micro batches (forward passes that belong to one optimizer step)."""
        self.micro_step = (self.micro_step or 0) + count
        self.micro_in_step += count

    def note(self, **columns: object) -> None:
        """Set columns of the coming row of python.torch_step_timing, over what the recorder knows itself: where a source
        such as DDP's own timers is better (`forward_ms`, `backward_ms`, `comm_blocked_ms`, `comm_source`, …)."""
        self.notes.update(columns)

    def advance(self, next_global_step: int) -> None:
        """Begin the next step: numbers move on, sums start anew."""
        self.completed += 1
        self.local_step = self.completed + 1
        self.global_step = next_global_step
        self.blocked_ns = 0
        self.blocked_unknown = False
        self.phase_ns = {}
        self.phases_seen = set()
        self.notes = {}
        if self.micro_step is not None:
            self.micro_batches = self.micro_in_step
        self.micro_in_step = 0


class OwnThread:
    """What the recorder keeps of one thread: its ids, its open spans, its occurrence counts of this step."""

    __slots__ = ("id", "is_main", "occurrences", "spans", "step")

    def __init__(self) -> None:
        self.id = get_native_id()
        self.is_main = get_ident() == main_thread().ident
        self.step = 0
        self.occurrences: dict[tuple[object, ...], int] = {}
        self.spans: list[Any] = []


class ThreadState(local):
    """`own` is the calling thread's."""

    def __init__(self) -> None:
        self.own = OwnThread()
