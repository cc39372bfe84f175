"""Functional collectives: what tensor parallelism and DTensor call.

They are asynchronous: the operation begins in the call and its result waits by itself when it is first used, through
`wait_tensor`. The functions of torch.distributed._functional_collectives are replaced. What compiled graphs call goes
past them. A kernel of torch's dispatcher would see it, but one in Python holds the GIL while the operation runs, and
gloo's threads need it to let go of a tensor: it hangs within some thousand calls (torch 2.13).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

from muster.probe.collectives import Op
from muster.probe.collectors.collectives import Collectives
from muster.probe.collectors.patching import Patches

TENSORS: Mapping[str, str] = {
    "broadcast": "self",
    "all_reduce": "self",
    "all_reduce_coalesced": "self",
    "all_gather_single": "self",
    "all_gather_single_autograd": "self",
    "all_gather_tensor": "self",
    "all_gather_tensor_autograd": "self",
    "all_gather_single_coalesced": "self",
    "all_gather_into_tensor_coalesced": "self",
    "reduce_scatter_single": "self",
    "reduce_scatter_single_autograd": "self",
    "reduce_scatter_tensor": "self",
    "reduce_scatter_tensor_autograd": "self",
    "reduce_scatter_single_coalesced": "inputs",
    "reduce_scatter_tensor_coalesced": "inputs",
    "all_to_all_single": "self",
    "all_to_all_single_autograd": "self",
}
"""Functions, and their parameter that is the input."""
_GATHERS = "all_gather"
_KEPT_STEPS = 2


class Functional:
    """Records functional collectives between their call and the first use of their result."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._recorder = collectives.recorder
        self._log = collectives.log
        self._waiting: dict[int, tuple[Op | None, str, int]] = {}

    def install(self, module: ModuleType, patches: Patches) -> None:
        """`module`: torch.distributed._functional_collectives."""
        for name, tensor in TENSORS.items():
            patches.replace(module, name, partial(self._wrap, name, tensor))
        patches.replace(module, "wait_tensor", self._wait)

    def settle(self) -> None:
        """A step has ended: results that nobody used for two steps are not waited for any more."""
        if not self._waiting:
            return
        now = self._recorder.counter.completed
        for key, (op, source, since) in list(self._waiting.items()):
            if now - since >= _KEPT_STEPS:
                del self._waiting[key]
                self._log.end(op, timing_source=source)

    def _wrap(self, name: str, tensor: str, original: Any) -> Any:
        signature = inspect.signature(original)
        if "group" not in signature.parameters or tensor not in signature.parameters:
            return original
        places = {n: i for i, n in enumerate(signature.parameters)}
        op_name = name.removesuffix("_autograd")
        collectives, inside = self._collectives, self._collectives.inside

        def argument(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            place = places[name]
            return args[place] if place < len(args) else kwargs.get(name)

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if collectives.passes():
                return original(*args, **kwargs)
            begun = self._begin(op_name, argument(tensor, args, kwargs), argument("group", args, kwargs))
            if begun is None:
                return original(*args, **kwargs)
            op, source = begun
            inside.operation = True
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._log.end(op, timing_source=source, error=error)
                raise
            finally:
                inside.operation = False
            self._log.launched(op)
            self._hold(result, op, source)
            return result

        return recorded

    def _begin(self, op_name: str, given: Any, group: Any) -> tuple[Op | None, str] | None:
        try:
            groups = self._collectives.groups
            pg = groups.resolve(group)
            if pg is None:
                return None
            known = groups.known(pg)
            tensors = given if isinstance(given, list | tuple) else [given]
            first = tensors[0]
            nbytes = sum(t.nbytes for t in tensors)
            if op_name.startswith(_GATHERS):
                nbytes *= known.group.size or 1
            number = known.sequence(pg)
            op = self._log.begin(
                op_name, known.group, nbytes=nbytes, shape=tuple(first.shape), dtype=self._collectives.dtypes[first.dtype],
                async_op=True, seq=None if number is None else number + 1,
            )  # fmt: skip
            return op, "wait" if first.is_cpu else "enqueue"
        except Exception as error:
            self._recorder.count_error(f"functional.{op_name}", error)
            return None

    def _hold(self, result: Any, op: Op | None, source: str) -> None:
        """Keep the operation until somebody waits for the memory of its (first) result."""
        try:
            first = result[0] if isinstance(result, list | tuple) else result
            element = getattr(first, "elem", None)
            if element is None or getattr(first, "completed", False):  # waited for inside the call
                self._log.end(op, timing_source=source, blocked_ns=None)
                return
            key = _memory(element)
            earlier = self._waiting.get(key)
            if earlier is not None:
                self._log.end(earlier[0], timing_source=earlier[1])
            self._waiting[key] = (op, source, self._recorder.counter.completed)
        except Exception as error:
            self._recorder.count_error("functional.hold", error)
            self._log.end(op, timing_source=source)

    def _wait(self, original: Any) -> Any:
        collectives = self._collectives

        @functools.wraps(original)
        def wait_tensor(tensor: Any) -> Any:
            if collectives.passes() or not self._waiting:
                return original(tensor)
            op, source = self._taken(tensor)
            self._log.wait_started(op)
            try:
                result = original(tensor)
            except BaseException as error:
                self._log.end(op, timing_source=source, error=error)
                raise
            self._log.end(op, timing_source=source)
            return result

        return wait_tensor

    def _taken(self, tensor: Any) -> tuple[Op | None, str]:
        try:
            op, source, _ = self._waiting.pop(_memory(tensor), (None, "wait", 0))
        except Exception as error:
            self._recorder.count_error("functional.wait", error)
            return None, "wait"
        return op, source


def _memory(tensor: Any) -> int:
    """The memory of a tensor: what torch itself finds the operation behind a result by."""
    return int(tensor.untyped_storage().data_ptr())
