"""Phases of a step: data loader, forward of the outermost parallel module, backward. One span each, whatever runs inside;
nothing is set on single modules."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from muster.probe.collectors.patching import Patches
from muster.probe.recorder import Recorder
from muster.probe.spans import Span

BackwardEnded = Callable[[BaseException | None], None]


class _Depth(threading.local):
    backward = 0
    data = 0


class Phases:
    """Opens and closes the spans."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._depth = _Depth()
        self.is_compiling: Callable[[], bool] = bool  # torch.compiler's own, once that is imported: the tracer knows it
        self._after_backward: list[BackwardEnded] = []

    def backward_depth(self) -> int:
        """How many backwards this thread is in: 1 in an ordinary one."""
        return self._depth.backward

    def after_backward(self, action: BackwardEnded) -> None:
        """Run this when the outermost backward of a thread has ended; with its exception, if it raised one."""
        self._after_backward.append(action)

    def forward(self, module: Any, trained: bool) -> Span | None:
        """Open the span of a forward of an outermost module. It is evaluation if the module was trained before and is now
        in evaluation mode: a teacher that is only read is none."""
        if trained and not module.training:
            return self._recorder.spans.open("eval.forward", "eval")
        return self._recorder.spans.open("forward", "forward")

    def install_backward(self, autograd: ModuleType, patches: Patches) -> None:
        """`autograd`: torch.autograd, whose `backward` Tensor.backward calls, too."""
        patches.replace(autograd, "backward", self._backward)

    def install_data(self, dataloader: ModuleType, patches: Patches) -> None:
        """`dataloader`: torch.utils.data.dataloader."""
        patches.replace(dataloader._BaseDataLoaderIter, "__next__", self._next)

    def install_fsdp(self, state: ModuleType, patches: Patches) -> None:
        """`state`: torch.distributed.fsdp._fully_shard._fsdp_state. The forward of a root is between its own hooks."""
        open_roots: dict[int, Span | None] = {}
        trained: set[int] = set()

        def begin(root: int, module: Any) -> None:
            if open_roots and root not in open_roots:
                return  # inside the forward of another
            self._recorder.spans.close(open_roots.get(root))  # still open where its last forward raised
            open_roots[root] = self.forward(module, root in trained)
            if module.training:
                trained.add(root)

        def before(original: Any) -> Any:
            @functools.wraps(original)
            def _pre_forward(fsdp: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
                # The root is the first whose hook runs; whether a state is one it knows only inside that hook.
                if self._recorder.active and fsdp._is_root is not False and not self.is_compiling():
                    begin(id(fsdp), module)
                return original(fsdp, module, *args, **kwargs)

            return _pre_forward

        def after(original: Any) -> Any:
            @functools.wraps(original)
            def _post_forward(fsdp: Any, *args: Any, **kwargs: Any) -> Any:
                try:
                    return original(fsdp, *args, **kwargs)
                finally:
                    if open_roots and id(fsdp) in open_roots:
                        self._recorder.spans.close(open_roots.pop(id(fsdp)))

            return _post_forward

        patches.replace(state.FSDPState, "_pre_forward", before)
        patches.replace(state.FSDPState, "_post_forward", after)

    def _backward(self, original: Any) -> Any:
        depth, spans = self._depth, self._recorder.spans

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self.is_compiling() or depth.backward or not self._recorder.active:
                if not depth.backward:
                    return original(*args, **kwargs)
                depth.backward += 1
                try:
                    return original(*args, **kwargs)
                finally:
                    depth.backward -= 1
            depth.backward = 1
            span = spans.open("backward", "backward")
            raised: BaseException | None = None
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                raised = error
                raise
            finally:
                depth.backward = 0
                for action in self._after_backward:
                    action(raised)
                spans.close(span, error=raised)

        return backward

    def _next(self, original: Any) -> Any:
        depth, spans = self._depth, self._recorder.spans

        @functools.wraps(original)
        def __next__(loader: Any) -> Any:  # noqa: N807
            if depth.data or not self._recorder.active:
                return original(loader)
            depth.data = 1
            span = spans.open("data.next", "data")
            try:
                return original(loader)
            finally:
                depth.data = 0
                spans.close(span)

        return __next__
