"""The generation of the job: an id that rank 0 puts into the store of the default process group."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from muster.probe.collectors.patching import Patches
from muster.probe.reader import discover
from muster.probe.recorder import Recorder

KEY = "muster/generation"
ATTEMPTS = 12
"""Looks at the store at most: at once, then at ends of steps, with the gap doubled each time."""


class GenerationId:
    """Agrees on the id when the default process group comes up. Nobody waits: a rank that looks too early looks again after
    a later step."""

    def __init__(self, recorder: Recorder, c10d: ModuleType) -> None:
        self._recorder = recorder
        self._c10d = c10d
        self._attempts = 0
        self._next = 0
        self._calls = 0

    def install(self, patches: Patches) -> None:
        patches.replace(self._c10d, "init_process_group", self._init)
        if self._c10d.is_initialized():
            self.up()

    def _init(self, original: Any) -> Any:
        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            recorder = self._recorder
            if not recorder.active:
                return original(*args, **kwargs)
            span = recorder.spans.open("init_process_group")
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                recorder.spans.close(span, error=error)
                raise
            recorder.spans.close(span)
            self.up()
            return result

        return init_process_group

    def up(self) -> None:
        """The default process group is there."""
        try:
            recorder = self._recorder
            rank, size = self._c10d.get_rank(), self._c10d.get_world_size()
            recorder.set_identity(rank=rank, world_size=size)
            if recorder.counter.comm_source is None:
                recorder.counter.watch_comm("patch")
            self._look(rank)
        except Exception as error:
            recorder.count_error("generation", error)

    def again(self) -> None:
        """After a step: look again if the id was not there yet."""
        recorder = self._recorder
        if recorder.identity.generation_final or self._attempts >= ATTEMPTS or not self._attempts:
            return
        self._calls += 1
        if self._calls < self._next:
            return
        self._calls = 0
        try:
            if self._c10d.is_initialized():
                self._look(self._c10d.get_rank())
        except Exception as error:
            recorder.count_error("generation", error)

    def _look(self, rank: int) -> None:
        recorder = self._recorder
        if recorder.identity.generation_final:
            return
        self._attempts += 1
        self._next = 1 << (self._attempts - 1)
        store = self._c10d._get_default_store()
        if rank == 0:
            generation = self._fresh()
            store.set(KEY, generation)
            recorder.set_generation(generation)
        elif store.check([KEY]):
            recorder.set_generation(store.get(KEY).decode())

    def _fresh(self) -> str:
        """The provisional id of this process, which ranks of its node share already, also those that never get to look at
        the store. If an earlier life of rank 0 had it (a launcher may restart its workers without counting that), with the
        start of this life."""
        recorder = self._recorder
        given, life = recorder.identity.generation, recorder.life.origin.life
        for earlier in discover(recorder.life.root, recorder.identity.job):
            meta = earlier.meta() if earlier.rank == recorder.identity.rank and earlier.life != life else None
            if meta is not None and meta.generation.partition("@")[0] == given:
                return f"{given}@{recorder.life.origin.started_ns // 1_000_000_000:x}"
        return given
