"""DistributedDataParallel: its reducer works in C++, out of sight of the patches.

The reducer starts its all-reduces while gradients are still being computed, and waits for them in a callback that it
queues at the autograd engine when its last gradient is ready. The engine runs such callbacks at the end of backward, in
the order in which they were queued. One of our own, queued when an earlier gradient is ready, therefore runs exactly when
this rank has nothing left to compute and begins to wait; and one that it queues in turn runs when the waiting is over.
Between the two the rank is blocked in the reducer, and can be seen there. Nothing of the user's is taken: no communication
hook, and DDP's own timers (which synchronise with the device wherever they sample) stay as they are.
"""

from __future__ import annotations

import functools
import sys
from functools import partial
from types import ModuleType
from typing import Any
from weakref import ReferenceType, ref

from muster.probe.collectives import Op
from muster.probe.collectors.collectives import Collectives
from muster.probe.collectors.ops import Spec
from muster.probe.collectors.patching import Patches
from muster.probe.collectors.phases import Phases

SOURCE = "ddp"
_WATCHED_PARAMETERS = 4


class _Reducer:
    """What is known of the reducer of one DDP module."""

    __slots__ = ("armed", "ddp", "nbytes", "on_cpu", "op", "trained")

    def __init__(self, ddp: Any) -> None:
        self.ddp: ReferenceType[Any] = ref(ddp)
        parameters = [p for p in ddp.module.parameters() if p.requires_grad]
        self.nbytes = sum(p.nbytes for p in parameters)
        self.on_cpu = all(p.is_cpu for p in parameters)
        self.armed = False
        self.trained = False
        self.op: Op | None = None


class DistributedDataParallelCollector:
    """Watches every DDP module that is made from now on."""

    def __init__(self, collectives: Collectives, phases: Phases) -> None:
        self._collectives = collectives
        self._recorder = collectives.recorder
        self._phases = phases
        self._counting: _Reducer | None = None
        self._reducers: dict[int, _Reducer] = {}
        self._waiting: list[_Reducer] = []

    def install(self, module: ModuleType, patches: Patches) -> None:
        """`module`: torch.nn.parallel.distributed."""
        self._engine = sys.modules["torch"].autograd.Variable._execution_engine
        self._grad_enabled = sys.modules["torch"].is_grad_enabled
        cls = module.DistributedDataParallel
        patches.replace(cls, "__init__", lambda original: self._init(original, patches))
        patches.replace(cls, "forward", self._forward)
        self._phases.after_backward(self._backward_ended)

    def install_broadcasts(self, dist: ModuleType, patches: Patches) -> None:
        """What DDP calls in torch.distributed: buffers and parameters sent as one, and the comparison of parameters when a
        module is wrapped."""
        for name, op_name in (
            ("_broadcast_coalesced", "broadcast_coalesced"),
            ("_verify_params_across_processes", "all_gather_coalesced"),
        ):
            patches.replace(dist, name, partial(self._on_group, op_name))

    def _on_group(self, op_name: str, original: Any) -> Any:
        """A C++ function whose first arguments are a process group and tensors."""

        def target(tensors: Any, group: Any, rest: Any, named: Any) -> Any:
            return original(group, tensors, *rest, **named)

        recorded = self._collectives.wrap(target, op_name, Spec(full=("tensors",), one="tensors", is_async=False))

        @functools.wraps(original)
        def on_group(process_group: Any, tensors: Any, *rest: Any, **named: Any) -> Any:
            return recorded(tensors, process_group, rest, named)

        return on_group

    def _init(self, original: Any, patches: Patches) -> Any:
        @functools.wraps(original)
        def __init__(ddp: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if not self._recorder.active:
                original(ddp, *args, **kwargs)
                return
            span = self._recorder.spans.open("ddp.init")
            try:
                original(ddp, *args, **kwargs)
            finally:
                self._recorder.spans.close(span)
            try:
                self._watch(ddp, patches)
            except Exception as error:
                self._recorder.count_error("ddp.init", error)

        return __init__

    def _watch(self, ddp: Any, patches: Patches) -> None:
        if getattr(ddp, "_use_python_reducer", False):
            return  # communicates with functional collectives
        reducer = _Reducer(ddp)
        key = id(ddp)
        self._reducers[key] = reducer
        reducer.ddp = ref(ddp, lambda _: self._reducers.pop(key, None))
        self._recorder.counter.watch_comm(SOURCE)
        parameters = [p for p in ddp.module.parameters() if p.requires_grad]
        stride = max(1, len(parameters) // _WATCHED_PARAMETERS)
        for parameter in parameters[::stride]:  # several, since some may be unused in a step
            handle = parameter.register_post_accumulate_grad_hook(lambda _, r=reducer: self._gradient(r))
            patches.on_undo(handle.remove)

    def _forward(self, original: Any) -> Any:
        @functools.wraps(original)
        def forward(ddp: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self._collectives.passes():
                return original(ddp, *args, **kwargs)
            reducer = self._reducers.get(id(ddp))
            span = self._phases.forward(ddp, reducer is not None and reducer.trained)
            try:
                output = original(ddp, *args, **kwargs)
            finally:
                self._recorder.spans.close(span)
            if reducer is not None and self._grad_enabled():
                reducer.armed = bool(ddp.require_backward_grad_sync)
                reducer.trained = reducer.trained or ddp.training
                self._count_micro_batch(reducer)
            return output

        return forward

    def _count_micro_batch(self, reducer: _Reducer) -> None:
        """Forward passes of the first DDP module count micro batches."""
        if self._counting is None or self._counting.ddp() is None:
            self._counting = reducer
        if self._counting is reducer:
            self._recorder.counter.micro()

    def _gradient(self, reducer: _Reducer) -> None:
        """In backward: a gradient of the module is ready, and the reducer has not queued its callback yet."""
        if not reducer.armed or not self._recorder.active:
            return
        reducer.armed = False
        try:
            if self._phases.backward_depth() > 1:
                # Inside a backward within backward (reentrant checkpointing) the end of ours would come too early.
                self._recorder.counter.blocked_unknown = True
                return
            self._engine.queue_callback(lambda: self._wait_begins(reducer))
        except Exception as error:
            self._recorder.count_error("ddp.backward", error)

    def _wait_begins(self, reducer: _Reducer) -> None:
        try:
            ddp = reducer.ddp()
            if ddp is None or not self._recorder.active:
                return
            known = self._collectives.groups.known(ddp.process_group)
            # With a hook of the user the traffic is the hook's, and its own calls say how much.
            nbytes = None if getattr(ddp, "_comm_hooks", None) else reducer.nbytes
            reducer.op = self._collectives.log.begin(
                "all_reduce", known.group, nbytes=nbytes, seq=known.sequence(ddp.process_group)
            )
            self._waiting.append(reducer)
            self._engine.queue_callback(lambda: self._wait_ends(reducer, None))
        except Exception as error:
            self._recorder.count_error("ddp.backward", error)

    def _wait_ends(self, reducer: _Reducer, error: BaseException | None) -> None:
        op, reducer.op = reducer.op, None
        if reducer in self._waiting:
            self._waiting.remove(reducer)
        if op is None:
            return
        self._collectives.log.end(op, timing_source="sync" if reducer.on_cpu else "enqueue", error=error)
        if not reducer.on_cpu:  # ends in a thread of the engine, where it is not added up
            self._recorder.counter.add_blocked(0, "enqueue")

    def _backward_ended(self, error: BaseException | None) -> None:
        """Backward is over; when the reducer raised, its wait is over too."""
        for reducer in list(self._waiting):
            self._wait_ends(reducer, error)
        if error is None and any(reducer.armed for reducer in self._reducers.values()):
            # A reduction was due, and no watched parameter took part: how long it took is not known.
            self._recorder.counter.blocked_unknown = True
