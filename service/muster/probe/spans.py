"""Spans and events: rows of python.trace_event, and a slot for every span that is open."""

from __future__ import annotations

import json
import os
import sys
from itertools import count
from time import perf_counter_ns, time_ns
from types import TracebackType
from typing import Any

from muster.probe.collectives import Errors, Rows, Slots, Who
from muster.probe.counter import OwnThread, StepCounter, ThreadState

TIMED_PHASES = frozenset({"data", "forward", "backward", "optimizer"})
"""Phases whose time on the main thread is summed into the columns of python.torch_step_timing."""
STEP_SPAN = "train.step"
_MAX_LOCATIONS = 4096


class Span:
    """An open span. Usable as a context manager; leaving it closes it, and spans left open inside it."""

    __slots__ = (
        "_owner", "attributes", "closed", "location", "name", "parent", "phase", "slot", "span_id", "start", "start_ns",
        "trace_id",
    )  # fmt: skip

    def __init__(self, owner: Spans, name: str, phase: str | None) -> None:
        self._owner = owner
        self.name = name
        self.phase = phase
        self.closed = False
        self.span_id = 0
        self.trace_id = 0
        self.parent: int | None = None
        self.slot: int | None = None
        self.start = 0
        self.start_ns = 0
        self.location: str | None = None
        self.attributes: str | None = None

    def __enter__(self) -> Span:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._owner.close(self, error=error)


class Spans:
    """Thread-safe; its methods never raise. Place and attributes of a span are in its `span_start` row only.

    Span ids are unique in the job: rank, start of this life and a count are mixed into 63 bits (20 + 16 + 27)."""

    def __init__(
        self,
        who: Who,
        started_ns: int,
        counter: StepCounter,
        threads: ThreadState,
        rows: Rows,
        slots: Slots,
        errors: Errors,
    ) -> None:
        self._who = who
        self._counter = counter
        self._threads = threads
        self._rows = rows
        self._slots = slots
        self._errors = errors
        life = (started_ns // 1_000_000) & 0xFFFF
        self._ids = count(((who.rank & 0xFFFFF) << 43) | (life << 27) | 1)
        self._locations: dict[tuple[str, int], str] = {}
        self._step: Span | None = None
        self._step_number = (0, 0)
        self.synthesise = True

    def open(
        self, name: str, phase: str | None = None, *, attributes: dict[str, Any] | None = None, location_depth: int = 0
    ) -> Span | None:
        """Begin a span on this thread. `phase`: data, forward, backward, optimizer, checkpoint, eval, compile or None.
        `location_depth`: whose file and line to keep: 1 is the caller of `open`, 2 the caller of that; 0 means nobody's.
        Returns what `close` needs; None after an error, which `close` accepts."""
        try:
            thread = self._threads.own
            span = Span(self, name, phase)
            if name == STEP_SPAN:
                self.synthesise = False
                self._drop_step()
            if attributes:
                span.attributes = _json(attributes)
            if location_depth:
                span.location = self._location(location_depth)
            stack = thread.spans
            if stack:
                span.parent = stack[-1].span_id
                span.trace_id = stack[-1].trace_id
            elif thread.is_main and self._step is not None:
                span.parent = span.trace_id = self._step.span_id
            self._begin(span, thread, time_ns())
            stack.append(span)
            if phase is not None and thread.is_main:
                self._counter.phases_seen.add(phase)
        except Exception as error:
            self._errors.count("span.open", error)
            return None
        return span

    def close(self, span: Span | None, *, error: BaseException | None = None) -> None:
        """End a span, and the ones that were opened inside it on this thread and not closed."""
        if span is None or span.closed:
            return
        now = perf_counter_ns()
        try:
            thread = self._threads.own
            stack = thread.spans
            if span in stack:
                while stack:
                    inner = stack.pop()
                    if inner is span:
                        break
                    self._end(inner, now, thread, None)
            self._end(span, now, thread, error)
            phase = span.phase
            if phase is not None and thread.is_main:
                self._counter.phases_seen.add(phase)
                if phase in TIMED_PHASES and not any(s.phase == phase for s in stack):
                    self._counter.add_phase(phase, now - span.start)
        except Exception as problem:
            self._errors.count("span.close", problem)

    def event(self, name: str, attributes: dict[str, Any] | None = None, *, location_depth: int = 0) -> None:
        """Write one event, inside the span that is open on this thread."""
        try:
            thread = self._threads.own
            parent = thread.spans[-1] if thread.spans else (self._step if thread.is_main else None)
            counter = self._counter
            self._rows.write(
                (
                    "event", getattr(parent, "trace_id", None), getattr(parent, "span_id", None), None, name, None,
                    time_ns(), thread.id, self._location(location_depth) if location_depth else None, None,
                    _json(attributes) if attributes else None, counter.local_step, counter.global_step, self._who.rank,
                )
            )  # fmt: skip
        except Exception as error:
            self._errors.count("event", error)

    def finish(self) -> None:
        """The process ends or recording stops: end the synthesised span of the step in progress."""
        try:
            self._drop_step()
            self.synthesise = False
        except Exception as error:
            self._errors.count("span.finish", error)

    def open_phases(self) -> set[str]:
        """Phases of the spans that are open on this thread."""
        stack = self._threads.own.spans
        return {s.phase for s in stack if s.phase is not None}

    def step_boundary(self, end: int, end_ns: int, begin: int, begin_ns: int) -> None:
        """End the synthesised span of the step that ended and begin the next one. Called before the counters move on;
        times by both clocks (`perf_counter_ns`, ns since the epoch)."""
        if not self.synthesise:
            return
        thread = self._threads.own
        last = self._step
        if last is None:  # the first step: nobody knew that it was one until it ended
            last = self._new_step(begin)
            self._begin(last, thread, begin_ns, slot=False)
        self._end(last, end, thread, None)

    def step_begin(self, begin: int, begin_ns: int) -> None:
        """Begin the synthesised span of the step in progress. Called after the counters moved on."""
        if self.synthesise:
            self._step = self._new_step(begin)
            self._begin(self._step, self._threads.own, begin_ns)

    def _location(self, depth: int) -> str:
        """The last two parts of the path and the line of the frame that is `depth` calls above this one's caller."""
        frame = sys._getframe(depth + 1)
        key = (frame.f_code.co_filename, frame.f_lineno)
        known = self._locations.get(key)
        if known is None:
            directory, name = os.path.split(frame.f_code.co_filename)
            known = f"{os.path.basename(directory)}/{name}:{frame.f_lineno}"
            if len(self._locations) < _MAX_LOCATIONS:
                self._locations[key] = known
        return known

    def _new_step(self, begin: int) -> Span:
        span = Span(self, STEP_SPAN, None)
        span.start = begin
        return span

    def _drop_step(self) -> None:
        """End the synthesised span before its step ends."""
        if self._step is not None:
            self._end(self._step, perf_counter_ns(), self._threads.own, None)
            self._step = None

    def _begin(self, span: Span, thread: OwnThread, start_ns: int, *, slot: bool = True) -> None:
        counter = self._counter
        span.span_id = next(self._ids)
        span.trace_id = span.trace_id or span.span_id
        span.start_ns = start_ns
        self._rows.write(
            (
                "span_start", span.trace_id, span.span_id, span.parent, span.name, span.phase, start_ns, thread.id,
                span.location, span.attributes, None, counter.local_step, counter.global_step, self._who.rank,
            )
        )  # fmt: skip
        if slot:
            span.slot = self._slots.put((thread.id, span.span_id, span.name, span.phase, start_ns, thread.is_main))
        span.start = span.start or perf_counter_ns()

    def _end(self, span: Span, now: int, thread: OwnThread, error: BaseException | None) -> None:
        span.closed = True
        if span.slot is not None:
            slot, span.slot = span.slot, None
            self._slots.free(slot)
        counter = self._counter
        note = None if error is None else _json({"exception": type(error).__name__})
        self._rows.write(
            (
                "span_end", span.trace_id, span.span_id, span.parent, span.name, span.phase,
                span.start_ns + now - span.start, thread.id, None, None, note,
                counter.local_step, counter.global_step, self._who.rank,
            )
        )  # fmt: skip


def _json(attributes: dict[str, Any]) -> str:
    return json.dumps(attributes, default=str, ensure_ascii=False, separators=(",", ":"))
