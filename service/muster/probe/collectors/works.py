"""Asynchronous work, from the call to the wait that closes it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from muster.probe.collectives import Op
from muster.probe.collectors.patches import Patches
from muster.probe.recorder import Recorder


class Works:
    """Knows the operation behind each Work that nobody has waited for yet. The Work itself is the user's and stays as it
    is: only the class's `wait` and `is_completed` are patched."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open: dict[int, tuple[weakref.ref[Any], Op | None, bool]] = {}

    def install(self, patches: Patches, work_class: Any) -> None:
        patches.replace(work_class, "wait", self._wait)
        patches.replace(work_class, "is_completed", self._is_completed)

    def follow(self, work: Any, op: Op | None, on_device: bool) -> None:
        """The operation is closed when `work` is waited for, seen complete, or thrown away. A list of works (coalesced
        calls) is followed by its last."""
        target = work[-1] if isinstance(work, list | tuple) and work else work
        key = id(target)
        try:
            self._open[key] = (weakref.ref(target, lambda _: self._dropped(key)), op, on_device)
        except TypeError as error:
            self._recorder.count_error("works", error)
            self._recorder.collectives.end(op, timing_source="enqueue")

    def _wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        opened, recorder = self._open, self._recorder

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            found = opened.get(id(work)) if recorder.active else None
            if found is None or found[0]() is not work:
                return original(work, *args, **kwargs)
            _, op, on_device = found
            recorder.collectives.wait_started(op)
            try:
                result = original(work, *args, **kwargs)
            except BaseException as error:
                opened.pop(id(work), None)
                recorder.collectives.end(op, timing_source="wait", error=error)
                raise
            opened.pop(id(work), None)
            recorder.collectives.end(op, timing_source="enqueue" if on_device else "wait")
            return result

        return wait

    def _is_completed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        opened, recorder = self._open, self._recorder

        @functools.wraps(original)
        def is_completed(work: Any) -> Any:
            done = original(work)
            found = opened.get(id(work)) if done and recorder.active else None
            if found is not None and found[0]() is work:
                opened.pop(id(work), None)
                recorder.collectives.end(found[1], timing_source="enqueue" if found[2] else "wait")
            return done

        return is_completed

    def _dropped(self, key: int) -> None:
        """Nobody will wait: the row says what is known, the launch."""
        found = self._open.pop(key, None)
        if found is not None and self._recorder.active:
            self._recorder.collectives.end(found[1], timing_source="wait")
