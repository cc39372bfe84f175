"""DistributedDataParallel's reducer: its all_reduce of gradients bypasses every Python call.

On CPU its wait is bracketed exactly, and is seen in flight while it lasts: a hook on the output of the wrapped module
queues a callback of the autograd engine when backward begins; callbacks run when all gradients are computed, in the order
in which they were queued, and the reducer queues its own (which waits) later. So ours runs when the wait begins, and one
that it queues itself runs when the wait has ended. On a device the host does not wait there; then DDP's own timers say how
long communication took beyond computation. Nothing of the user's is taken: no communication hook, no gradient changed.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from muster.probe.collectives import Op
from muster.probe.collectors.groups import Groups
from muster.probe.collectors.operations import content
from muster.probe.collectors.patches import Patches
from muster.probe.recorder import Recorder

SOURCE = "ddp"
_DEPTH = 4


class Ddp:
    """Patches DistributedDataParallel.forward. `device_timers`: use DDP's timers for modules on CPU too (for tests)."""

    def __init__(self, recorder: Recorder, groups: Groups, *, device_timers: bool = False) -> None:
        self._recorder = recorder
        self._groups = groups
        self._device_timers = device_timers
        self._seen: weakref.WeakKeyDictionary[Any, _Module] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        patches.when_imported("torch.nn.parallel.distributed", lambda module: self._patch(patches, module))

    def _patch(self, patches: Patches, module: ModuleType) -> None:
        patches.replace(module.DistributedDataParallel, "forward", self._forward)

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder
        torch: Any = sys.modules["torch"]

        @functools.wraps(original)
        def forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not recorder.active:
                return original(ddp, *args, **kwargs)
            span = recorder.spans.open("ddp.forward", "forward")
            try:
                output = original(ddp, *args, **kwargs)
            except BaseException as error:
                recorder.spans.close(span, error=error)
                raise
            recorder.spans.close(span)
            self._after_forward(ddp, output)
            return output

        return forward

    def _after_forward(self, ddp: Any, output: Any) -> None:
        recorder = self._recorder
        try:
            module = self._seen.get(ddp)
            if module is None:
                module = self._seen[ddp] = self._look_at(ddp)
            if not ddp.require_backward_grad_sync:
                return
            if module.timers:
                self._read_timers(ddp, module)
                return
            tensor = _differentiable(output, _DEPTH)
            if tensor is not None:
                tensor.register_hook(functools.partial(self._backward_begins, module))
        except Exception as error:
            recorder.count_error("ddp.forward", error)

    def _look_at(self, ddp: Any) -> _Module:
        recorder = self._recorder
        recorder.counter.watch_comm(SOURCE)
        parameters = [p for p in ddp.module.parameters() if p.requires_grad]
        what = content(parameters)
        found = self._groups.resolve(ddp.process_group)
        module = _Module(found, what.nbytes, what.dtype, timers=self._device_timers or what.on_device)
        if module.timers:
            ddp._set_ddp_runtime_logging_sample_rate(1)
        return module

    def _backward_begins(self, module: _Module, grad: Any) -> None:
        """Runs first in backward. Returns nothing, so that the gradient stays as it is."""
        try:
            self._queue(functools.partial(self._wait_begins, module))
        except Exception as error:
            self._recorder.count_error("ddp.backward", error)

    def _wait_begins(self, module: _Module) -> None:
        recorder = self._recorder
        if not recorder.active or module.group is None:
            return
        try:
            op = recorder.collectives.begin("all_reduce", module.group[1], nbytes=module.nbytes, dtype=module.dtype)
            self._queue(functools.partial(self._wait_ends, op))
        except Exception as error:
            recorder.count_error("ddp.wait", error)

    def _wait_ends(self, op: Op | None) -> None:
        self._recorder.collectives.end(op)

    def _read_timers(self, ddp: Any, module: _Module) -> None:
        """Times of the newest iteration that DDP has timed, in nanoseconds; beside each other they say how long the step
        waited for communication that computation did not hide."""
        data = ddp._get_ddp_logging_data()
        iteration = data.get("iteration")
        communication, overlap = data.get("backward_comm_time"), data.get("backward_compute_comm_overlap_time")
        if iteration == module.iteration or not communication or overlap is None:
            return
        module.iteration = iteration
        self._recorder.counter.note(
            comm_blocked_ms=max(0, communication - overlap) / 1e6,
            comm_source=SOURCE,
            forward_ms=data.get("forward_compute_time", 0) / 1e6,
            backward_ms=data.get("backward_compute_time", 0) / 1e6,
        )

    @staticmethod
    def _queue(callback: Callable[[], None]) -> None:
        torch: Any = sys.modules["torch"]
        torch.autograd.Variable._execution_engine.queue_callback(callback)


class _Module:
    """What is known of one wrapped module."""

    __slots__ = ("dtype", "group", "iteration", "nbytes", "timers")

    def __init__(self, group: Any, nbytes: int | None, dtype: str | None, *, timers: bool) -> None:
        self.group = group
        self.nbytes = nbytes
        self.dtype = dtype
        self.timers = timers
        self.iteration: int | None = None


def _differentiable(value: Any, depth: int) -> Any:
    """The first tensor in an output that gradients flow into; None for none."""
    if getattr(value, "requires_grad", False):
        return value
    if depth == 0:
        return None
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, list | tuple):
        inner = list(value)
    elif hasattr(value, "__dataclass_fields__"):
        inner = [getattr(value, name) for name in value.__dataclass_fields__]
    else:
        return None
    for item in inner:
        found = _differentiable(item, depth - 1)
        if found is not None:
            return found
    return None
