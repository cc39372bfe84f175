"""Steps, counted by the first optimizer that steps; phases of backward and optimizer."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from muster.probe.collectors.generation import Generation
from muster.probe.collectors.patches import Patches
from muster.probe.recorder import Recorder

SOURCE = "optimizer"


class OptimizerSteps:
    """One step of the first optimizer instance is one step of training; other optimizers (GANs, wrappers) count nothing.
    `muster.probe.step()` takes over from the first call on."""

    def __init__(self, recorder: Recorder, generation: Generation) -> None:
        self._recorder = recorder
        self._generation = generation
        self._primary: weakref.ref[Any] | None = None
        self._span: Any = None

    def install(self, patches: Patches) -> None:
        patches.when_imported("torch.optim.optimizer", lambda module: self._hook(patches, module))
        patches.when_imported("torch.autograd", lambda module: patches.replace(module, "backward", self._backward))

    def _hook(self, patches: Patches, module: ModuleType) -> None:
        optimizer: Any = module
        for handle in (
            optimizer.register_optimizer_step_pre_hook(self._before),
            optimizer.register_optimizer_step_post_hook(self._after),
        ):
            patches.on_remove(handle.remove)

    def _is_primary(self, optimizer: Any) -> bool:
        if self._primary is None or self._primary() is None:
            self._primary = weakref.ref(optimizer)
        return self._primary() is optimizer

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        if recorder.active and self._is_primary(optimizer):
            self._span = recorder.spans.open("optimizer.step", "optimizer")

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        if not recorder.active or not self._is_primary(optimizer):
            return
        if self._span is not None:
            recorder.spans.close(self._span)
            self._span = None
        recorder.steps.boundary(SOURCE)
        if self._generation.pending:
            self._generation.settle()

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder
        torch: Any = sys.modules["torch"]

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not recorder.active or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            span = recorder.spans.open("backward", "backward")
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                recorder.spans.close(span, error=error)
                raise
            recorder.spans.close(span)
            return result

        return backward
