"""Asynchronous operations between their launch and the wait for them.

`wait` of torch's own Work and Future classes is replaced, and nothing is put around the objects: what the training gets is
exactly what torch returned, and it stays usable wherever torch takes it.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import Any
from weakref import ref

from muster.probe.collectives import Op
from muster.probe.recorder import Recorder


class _Pending:
    __slots__ = ("ops", "source", "work")

    def __init__(self, work: Any, ops: list[Op | None], source: str) -> None:
        self.work = work
        self.ops = ops
        self.source = source


class Works:
    """The operations that were launched and not yet waited for, by the object that stands for them.

    An operation ends when its object is waited for, is found completed at the end of a step, or is given up by the
    program; in the last two cases the caller was blocked by the launch only.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._log = recorder.collectives
        self._pending: dict[int, _Pending] = {}
        self._given_up: deque[_Pending] = deque()

    def track(self, work: Any, op: Op | None, source: str) -> None:
        """`work` stands for `op`. `source`: what the time of a wait says, `wait` or `enqueue`."""
        self._add(work, [op], source)

    def timed(self, original: Any) -> Any:
        """What to put in place of `wait`."""

        @functools.wraps(original)
        def wait(work: Any, /, *args: Any, **kwargs: Any) -> Any:
            pending = self._pending.pop(id(work), None) if self._pending else None
            if pending is None or not self._recorder.active:
                return original(work, *args, **kwargs)
            for op in pending.ops:
                self._log.wait_started(op)
            try:
                result = original(work, *args, **kwargs)
            except BaseException as error:
                self._end(pending, error)
                raise
            self._end(pending, None)
            return result

        return wait

    def hand_over(self, original: Any) -> Any:
        """What to put in place of `Work.get_future`: from then on the future stands for the operation."""

        @functools.wraps(original)
        def get_future(work: Any, /, *args: Any, **kwargs: Any) -> Any:
            future = original(work, *args, **kwargs)
            pending = self._pending.pop(id(work), None) if self._pending else None
            if pending is not None:
                self._add(future, pending.ops, pending.source)
            return future

        return get_future

    def sweep(self) -> None:
        """End what was given up. Cheap: called before each operation."""
        while self._given_up:
            self._end(self._given_up.popleft(), None)

    def settle(self) -> None:
        """The step is over: end what is complete without a wait."""
        self.sweep()
        for key, pending in list(self._pending.items()):
            work = pending.work()
            done = getattr(work, "is_completed", None) or getattr(work, "done", None)
            try:
                if done is not None and done():
                    self._pending.pop(key, None)
                    self._end(pending, None)
            except Exception as error:
                self._recorder.count_error("works.settle", error)

    def _add(self, work: Any, ops: list[Op | None], source: str) -> None:
        key = id(work)
        given_up, pending_by_id = self._given_up, self._pending

        def gone(_: Any) -> None:  # may run anywhere, also inside the log: only take note
            pending = pending_by_id.pop(key, None)
            if pending is not None:
                given_up.append(pending)

        earlier = self._pending.get(key)
        if earlier is not None and earlier.work() is work:  # two operations behind one object
            earlier.ops += ops
            return
        self._pending[key] = _Pending(ref(work, gone), ops, source)

    def _end(self, pending: _Pending, error: BaseException | None) -> None:
        for op in pending.ops:
            self._log.end(op, timing_source=pending.source, error=error)
