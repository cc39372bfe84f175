"""What counts steps: the optimizer.

The first optimizer whose step ends counts, and only that instance: a second optimizer, the other side of a GAN, a wrapper
around it or one optimizer for each parameter would multiply the steps. Where one optimizer's step calls another's, the
outer one counts. `muster.probe.step()` overrides all of it (the recorder sees to that).
"""

from __future__ import annotations

import sys
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
        self._span: Span | None = None
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
        if self._recorder.active and not _nested():
            self._recorder.spans.close(self._span)  # still open where the last step raised: torch calls no hook then
            self._span = self._recorder.spans.open("optimizer.step", "optimizer")

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._recorder.active or _nested():
            return
        self._recorder.spans.close(self._span)
        self._span = None
        counting = None if self._counting is None else self._counting()
        if counting is None:
            counting, self._counting = optimizer, ref(optimizer)
        for action in self._after_step:
            action()
        if counting is optimizer:
            self._recorder.steps.boundary(SOURCE)


def _nested() -> bool:
    """Whether the step whose hook this is was called by another step (of a wrapper, or of the class above). All steps run
    in the same function of torch, so its code is looked for further up the stack; keeping count would go wrong with the
    first step that raises."""
    frame: Any = sys._getframe(2)
    code = frame.f_code
    frame = frame.f_back
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
