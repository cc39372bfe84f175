"""What is recorded without a change to the training code: collectives, steps, phases, checkpoints of torch.

`install(recorder, names)` waits for torch to be imported, and sets its hooks then. It never imports torch itself. Each
module here watches one thing; docs/collectors.md says what each costs and what it cannot see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from muster.probe.collectors.checkpoints import Checkpoints
from muster.probe.collectors.collectives import Collectives
from muster.probe.collectors.ddp import DistributedDataParallelCollector
from muster.probe.collectors.functional import Functional
from muster.probe.collectors.generation import GenerationId
from muster.probe.collectors.imports import PostImport
from muster.probe.collectors.patching import Patches
from muster.probe.collectors.phases import Phases
from muster.probe.collectors.steps import OptimizerSteps
from muster.probe.collectors.works import Works
from muster.probe.recorder import Recorder

TORCH = ("collectives", "functional", "ddp", "steps", "phases", "checkpoints", "generation")
"""What `torch` stands for."""
NAMES = (*TORCH,)
FSDP2 = ("torch.distributed.fsdp._fully_shard._fsdp_state", "torch.distributed._composable.fsdp._fsdp_state")
"""Where fully_shard lives: since torch 2.6, and before."""


class Installed:
    """The hooks of one recorder. After `uninstall()` torch is as it was, but for names that the training keeps in places
    other than modules: those call straight through."""

    def __init__(self, recorder: Recorder, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._recorder = recorder
        self._patches = Patches()
        self._imports = PostImport(recorder.count_error)
        self._works = Works(recorder)
        self._steps = OptimizerSteps(recorder)
        self._checkpoints = Checkpoints(recorder)
        self._phases = Phases(recorder)
        self._collectives: Collectives | None = None
        self._late = "torch.distributed.distributed_c10d" in sys.modules

    def uninstall(self) -> None:
        """Put everything back."""
        self._imports.close()
        self._patches.undo()

    def install(self) -> None:
        """Set the hooks of what is imported, and await the rest."""
        if {"collectives", "functional", "ddp"} & set(self.names):
            self._when("torch.distributed.distributed_c10d", self._on_c10d)
        if "generation" in self.names:
            self._when("torch.distributed.distributed_c10d", self._on_generation)
        if "functional" in self.names:
            self._when("torch.distributed._functional_collectives", self._on_functional)
        if "ddp" in self.names:
            self._when("torch.nn.parallel.distributed", self._on_ddp)
        self._when("torch.compiler", self._on_compiler)
        if "steps" in self.names:
            self._when("torch.optim.optimizer", lambda m: self._steps.install(m, self._patches))
            self._steps.after_step(self._works.settle)
        if "phases" in self.names or "ddp" in self.names:
            self._when("torch.autograd", lambda m: self._phases.install_backward(m, self._patches))
        if "phases" in self.names:
            self._when("torch.utils.data.dataloader", lambda m: self._phases.install_data(m, self._patches))
            for place in FSDP2:
                self._when(place, lambda m: self._phases.install_fsdp(m, self._patches))
        if "checkpoints" in self.names:
            self._when("torch.serialization", lambda m: self._checkpoints.install_save(m, self._patches))
            self._when(
                "torch.distributed.checkpoint.state_dict_saver",
                lambda m: self._checkpoints.install_distributed(m, self._patches),
            )
        if self._late:
            self._patches.spread()
            self._teach_compiler()

    def _when(self, module: str, action: Callable[[ModuleType], None]) -> None:
        self._imports.when(module, action)

    def _on_compiler(self, compiler: ModuleType) -> None:
        self._phases.is_compiling = compiler.is_compiling
        if self._collectives is not None:
            self._collectives.is_compiling = compiler.is_compiling

    def _on_c10d(self, c10d: ModuleType) -> None:
        if not c10d.__dict__.get("is_available", lambda: True)():
            return
        collectives = self._collectives = Collectives(self._recorder, c10d, self._works)
        if "collectives" in self.names:
            collectives.install(self._patches)

    def _on_generation(self, c10d: ModuleType) -> None:
        generation = GenerationId(self._recorder, c10d)
        generation.install(self._patches)
        self._steps.after_step(generation.again)

    def _on_functional(self, module: ModuleType) -> None:
        if self._collectives is not None:
            functional = Functional(self._collectives)
            functional.install(module, self._patches)
            self._steps.after_step(functional.settle)

    def _on_ddp(self, module: ModuleType) -> None:
        if self._collectives is not None:
            ddp = DistributedDataParallelCollector(self._collectives, self._phases)
            ddp.install(module, self._patches)
            ddp.install_broadcasts(sys.modules["torch.distributed"], self._patches)

    def _teach_compiler(self) -> None:
        """torch.compile finds what to put in place of a collective by the function itself: tell it about ours."""
        module = sys.modules.get("torch.distributed._functional_collectives")
        remaps: dict[Any, Any] | None = getattr(module, "traceable_collective_remaps", None)
        if remaps is None:
            return
        for function in list(remaps):
            ours = self._patches.replacement(function)
            if ours is not None:
                remaps[ours] = remaps[function]
                self._patches.on_undo(partial(remaps.pop, ours, None))


def install(recorder: Recorder, names: Sequence[str]) -> Installed:
    """Install collectors by name: `torch` for the usual ones, or single names out of `NAMES`. Unknown names are counted."""
    wanted: list[str] = []
    for name in names:
        if name == "torch":
            wanted += TORCH
        elif name in NAMES:
            wanted.append(name)
        else:
            recorder.count_error("collectors", f"unknown collector {name!r}; known are torch, {', '.join(NAMES)}")
    installed = Installed(recorder, tuple(dict.fromkeys(wanted)))
    installed.install()
    return installed
