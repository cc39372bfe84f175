"""What counts steps: the optimizer.

The first optimizer whose step ends counts, and only that instance: a second optimizer, the other side of a GAN, a wrapper
around it or one optimizer for each parameter would multiply the steps. Where one optimizer's step calls another's, the
outer one counts. `muster.probe.step()` overrides all of it (the recorder sees to that).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import ReferenceType, ref

from muster.probe.collectors.patching import Patches
from muster.probe.recorder import Recorder
from muster.probe.spans import Span

SOURCE = "optimizer"


class OptimizerSteps:
    """Hooks that torch calls before and after the step of every optimizer."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open: list[tuple[int, Span | None]] = []
        self._counting: ReferenceType[Any] | None = None
        self._after_step: list[Callable[[], None]] = []

    def after_step(self, action: Callable[[], None]) -> None:
        """Run this after the step of any optimizer."""
        self._after_step.append(action)

    def install(self, optimizer: ModuleType, patches: Patches) -> None:
        """`optimizer`: torch.optim.optimizer."""
        for register, hook in (
            (optimizer.register_optimizer_step_pre_hook, self._before),
            (optimizer.register_optimizer_step_post_hook, self._after),
        ):
            patches.on_undo(register(hook).remove)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._recorder.active:
            return
        key = id(optimizer)
        if any(key == known for known, _ in self._open):  # its last step raised, and torch called no hook after it
            while self._open:
                known, span = self._open.pop()
                self._recorder.spans.close(span)
                if known == key:
                    break
        self._open.append((key, self._recorder.spans.open("optimizer.step", "optimizer") if not self._open else None))

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._recorder.active:
            return
        key = id(optimizer)
        while self._open:
            known, span = self._open.pop()
            self._recorder.spans.close(span)
            if known == key:
                break
        if self._open:
            return
        counting = None if self._counting is None else self._counting()
        if counting is None:
            counting, self._counting = optimizer, ref(optimizer)
        for action in self._after_step:
            action()
        if counting is optimizer:
            self._recorder.steps.boundary(SOURCE)
