"""Functional collectives (`torch.distributed._functional_collectives`): what tensor parallelism and DTensor call. They
return at once; the caller is blocked when the tensor is first used, in `wait_tensor`."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from muster.probe.collectives import Op
from muster.probe.collectors.groups import Groups, next_seq
from muster.probe.collectors.operations import content
from muster.probe.collectors.patches import Patches
from muster.probe.recorder import Recorder

_GROUP_POSITION = {
    "all_reduce": 2,
    "broadcast": 2,
    "all_gather_tensor": 2,
    "all_gather_single": 2,
    "reduce_scatter_tensor": 3,
    "reduce_scatter_single": 3,
    "all_to_all_single": 3,
}


class Functional:
    """Patches the functions by which Python code asks for functional collectives. Calls of the operators themselves
    (compiled graphs) are not seen."""

    def __init__(self, recorder: Recorder, groups: Groups) -> None:
        self._recorder = recorder
        self._groups = groups
        self._open: dict[int, tuple[weakref.ref[Any], Op | None, bool]] = {}

    def install(self, patches: Patches) -> None:
        patches.when_imported("torch.distributed._functional_collectives", lambda module: self._patch(patches, module))

    def _patch(self, patches: Patches, module: ModuleType) -> None:
        for name in _GROUP_POSITION:
            patches.replace(module, name, functools.partial(self._wrapper, name), everywhere=False)
        patches.replace(module, "wait_tensor", self._wait)

    def _wrapper(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder
        torch: Any = sys.modules["torch"]

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not recorder.active:
                return original(*args, **kwargs)
            op, on_device = self._begin(name, args, kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                recorder.collectives.end(op, error=error)
                raise
            recorder.collectives.launched(op)
            self._follow(result, op, on_device)
            return result

        return call

    def _begin(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Op | None, bool]:
        try:
            position = _GROUP_POSITION[name]
            said = args[position] if position < len(args) else kwargs.get("group")
            process_group = _process_group(said)
            found = None if process_group is None else self._groups.resolve(process_group)
            if found is None:
                return None, False
            if self._recorder.counter.comm_source is None:
                self._recorder.counter.watch_comm("functional")
            what = content(args[0] if args else kwargs.get("self"))
            op = self._recorder.collectives.begin(
                name,
                found[1],
                nbytes=what.nbytes,
                shape=what.shape,
                dtype=what.dtype,
                async_op=True,
                seq=next_seq(found[0]),
            )
        except Exception as error:
            self._recorder.count_error(f"functional.{name}", error)
            return None, False
        return op, what.on_device

    def _follow(self, result: Any, op: Op | None, on_device: bool) -> None:
        if op is None:
            return
        tensor = getattr(result, "elem", None)
        if tensor is None:  # no AsyncCollectiveTensor: the call has waited itself
            self._recorder.collectives.end(op, timing_source="enqueue" if on_device else "sync")
            return
        key = id(tensor)
        self._open[key] = (weakref.ref(tensor, lambda _: self._dropped(key)), op, on_device)

    def _wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        opened, recorder = self._open, self._recorder
        torch: Any = sys.modules["torch"]

        @functools.wraps(original)
        def wait_tensor(tensor: Any) -> Any:
            if torch.compiler.is_compiling() or not recorder.active:
                return original(tensor)
            found = opened.get(id(tensor))
            if found is None or found[0]() is not tensor:
                return original(tensor)
            _, op, on_device = found
            recorder.collectives.wait_started(op)
            try:
                result = original(tensor)
            except BaseException as error:
                opened.pop(id(tensor), None)
                recorder.collectives.end(op, timing_source="wait", error=error)
                raise
            opened.pop(id(tensor), None)
            recorder.collectives.end(op, timing_source="enqueue" if on_device else "wait")
            return result

        return wait_tensor

    def _dropped(self, key: int) -> None:
        found = self._open.pop(key, None)
        if found is not None and self._recorder.active:
            self._recorder.collectives.end(found[1], timing_source="wait")


def _process_group(said: Any) -> Any:
    """The process group for what a functional collective takes as its group: a group, a mesh of one dimension, a mesh and
    a dimension; None for what names none (lists of ranks)."""
    if isinstance(said, tuple) and len(said) == 2 and hasattr(said[0], "get_group"):
        return said[0].get_group(said[1])
    if hasattr(said, "get_group"):
        return said.get_group() if said.ndim == 1 else None
    if isinstance(said, str):
        c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
        return c10d._resolve_process_group(said)
    return None if isinstance(said, list) else said
