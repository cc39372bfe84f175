"""Checkpoints: torch.save and torch.distributed.checkpoint, as spans of phase `checkpoint` and rows of
python.checkpoint. Paths are hashed by the recorder, never kept."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from muster.probe.collectors.patches import Patches
from muster.probe.recorder import Recorder

_DISTRIBUTED = "torch.distributed.checkpoint.state_dict_saver"


class Checkpoints:
    """Patches the functions that write checkpoints. The row is written when the call returns; for `async_save` that is
    when the copy is made, while a thread goes on writing."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def install(self, patches: Patches) -> None:
        wrap = self._wrapper
        patches.when_imported(
            "torch.serialization", lambda m: patches.replace(m, "save", wrap("torch.save", _file), everywhere=True)
        )
        patches.when_imported(_DISTRIBUTED, lambda m: self._patch_distributed(patches, m))

    def _patch_distributed(self, patches: Patches, module: ModuleType) -> None:
        for name in ("save", "async_save"):
            patches.replace(module, name, self._wrapper("distributed", _checkpoint_id), everywhere=True)

    def _wrapper(self, kind: str, path_of: Callable[..., object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        recorder = self._recorder

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def save(*args: Any, **kwargs: Any) -> Any:
                if not recorder.active:
                    return original(*args, **kwargs)
                span = recorder.spans.open(kind, "checkpoint")
                started = perf_counter_ns()
                try:
                    result = original(*args, **kwargs)
                except BaseException as error:
                    recorder.spans.close(span, error=error)
                    raise
                recorder.spans.close(span)
                path = path_of(args, kwargs)
                recorder.checkpoint(
                    kind=kind, duration_ms=(perf_counter_ns() - started) / 1e6, nbytes=_size(path), path=path
                )
                return result

            return save

        return make


def _file(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    return args[1] if len(args) > 1 else kwargs.get("f")


def _checkpoint_id(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    return kwargs.get("checkpoint_id")


def _size(path: object) -> int | None:
    try:
        return os.stat(path).st_size if isinstance(path, str | os.PathLike) and os.path.isfile(path) else None
    except OSError:
        return None
