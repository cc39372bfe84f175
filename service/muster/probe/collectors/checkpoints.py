"""Checkpoints: torch.save to a file, and torch.distributed.checkpoint."""

from __future__ import annotations

import functools
import os
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from muster.probe.collectors.patching import Patches
from muster.probe.recorder import Recorder

PHASE = "checkpoint"


class Checkpoints:
    """A span of phase checkpoint around each save, and a row of python.checkpoint after it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def install_save(self, serialization: ModuleType, patches: Patches) -> None:
        """`serialization`: torch.serialization."""
        patches.replace(serialization, "save", self._save)

    def install_distributed(self, saver: ModuleType, patches: Patches) -> None:
        """`saver`: torch.distributed.checkpoint.state_dict_saver. An asynchronous save is recorded as the time that the
        training waits for it; the rest happens beside it."""
        patches.replace(saver, "save", lambda original: self._distributed(original, "distributed"))
        patches.replace(saver, "async_save", lambda original: self._distributed(original, "distributed async"))

    def _save(self, original: Any) -> Any:
        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            path = _path(f)
            if path is None or self._inside() or not self._recorder.active:
                return original(obj, f, *args, **kwargs)
            return self._recorded(lambda: original(obj, f, *args, **kwargs), "torch.save", path)

        return save

    def _distributed(self, original: Any, kind: str) -> Any:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            if self._inside() or not self._recorder.active:
                return original(*args, **kwargs)
            path = kwargs.get("checkpoint_id")
            if path is None:
                path = getattr(kwargs.get("storage_writer"), "path", None)
            return self._recorded(lambda: original(*args, **kwargs), kind, path)

        return save

    def _inside(self) -> bool:
        """Whether a save or a checkpoint span of the script is open already on this thread."""
        return PHASE in self._recorder.spans.open_phases()

    def _recorded(self, call: Any, kind: str, path: Any) -> Any:
        recorder = self._recorder
        span = recorder.spans.open(kind, PHASE)
        began = perf_counter_ns()
        try:
            result = call()
        except BaseException as error:
            recorder.spans.close(span, error=error)
            raise
        duration = (perf_counter_ns() - began) / 1e6
        recorder.spans.close(span)
        recorder.checkpoint(kind=kind, duration_ms=duration, nbytes=_size(path), path=path)
        return result


def _path(file: Any) -> str | None:
    """The path that is written to; None for a buffer in memory."""
    if isinstance(file, str | os.PathLike):
        return os.fspath(file)  # type: ignore[no-any-return, unused-ignore]
    name = getattr(file, "name", None)
    return name if isinstance(name, str) else None


def _size(path: Any) -> int | None:
    try:
        return os.stat(path).st_size if os.path.isfile(path) else None
    except (OSError, TypeError, ValueError):
        return None
