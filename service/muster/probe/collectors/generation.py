"""The id that all ranks of one life of the job share: rank 0 makes it, the default process group's store carries it."""

from __future__ import annotations

import functools
import os
import secrets
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

from muster.probe.collectors.groups import Groups
from muster.probe.collectors.patches import Patches
from muster.probe.recorder import Recorder

KEY = "muster/generation"


class Generation:
    """Never blocks: the other ranks look whether the id is there, after the group is up, after collectives and at steps,
    until it is. `pending` says that it is still looked for."""

    def __init__(self, recorder: Recorder, groups: Groups) -> None:
        self._recorder = recorder
        self._groups = groups
        self.pending = False

    def install(self, patches: Patches) -> None:
        patches.when_imported("torch.distributed.distributed_c10d", lambda module: self._patch(patches, module))

    def settle(self) -> None:
        """Look once; a look takes one round trip to the store."""
        recorder = self._recorder
        if not self.pending or not recorder.active:
            return
        try:
            c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
            if c10d._world.default_pg is None:
                return
            store = c10d._get_default_store()
            if c10d.get_rank() == 0:
                recorder.set_generation(new_generation())
                store.set(KEY, recorder.identity.generation)
                self.pending = False
            elif store.check([KEY]):
                recorder.set_generation(store.get(KEY).decode())
                self.pending = False
        except Exception as error:
            self.pending = False
            recorder.count_error("generation", error)

    def _patch(self, patches: Patches, c10d: ModuleType) -> None:
        patches.replace(c10d, "init_process_group", self._on_init, everywhere=True)
        patches.replace(c10d, "destroy_process_group", self._on_destroy, everywhere=True)
        world: Any = getattr(c10d, "_world", None)
        if world is not None and world.default_pg is not None:
            self._up(c10d)

    def _on_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._recorder.active:
                self._up(sys.modules["torch.distributed.distributed_c10d"])
            return result

        return init_process_group

    def _on_destroy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            self._groups.forget()
            return original(*args, **kwargs)

        return destroy_process_group

    def _up(self, c10d: Any) -> None:
        recorder = self._recorder
        try:
            recorder.set_identity(rank=c10d.get_rank(), world_size=c10d.get_world_size())
            self.pending = not recorder.identity.generation_final
        except Exception as error:
            recorder.count_error("generation", error)
        self.settle()


def new_generation() -> str:
    """Run id of the launcher, time, and four hex digits against chance."""
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    name = run[:64] if run not in ("", "none") else "run"
    return f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
