"""Calls of torch.distributed, as rows of python.comm_collective. Object operations and others that are made of several
count once; asynchronous ones are closed when they are waited for."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from muster.probe.collectives import Op
from muster.probe.collectors.generation import Generation
from muster.probe.collectors.groups import Groups, next_seq
from muster.probe.collectors.operations import OPERATIONS, Operation, argument, content
from muster.probe.collectors.patches import Patches
from muster.probe.collectors.works import Works
from muster.probe.recorder import Recorder

Function = Callable[..., Any]


class Inside(threading.local):
    """Whether this thread is inside a recorded operation already."""

    busy = False


class Collectives:
    """Patches every function of OPERATIONS that this version of torch has."""

    def __init__(self, recorder: Recorder, groups: Groups, generation: Generation) -> None:
        self._recorder = recorder
        self._groups = groups
        self._generation = generation
        self._inside = Inside()
        self._works = Works(recorder)

    def install(self, patches: Patches) -> None:
        patches.when_imported("torch.distributed.distributed_c10d", lambda module: self._patch(patches, module))

    def _patch(self, patches: Patches, c10d: ModuleType) -> None:
        for operation in OPERATIONS.values():
            make = functools.partial(self._wrapper, operation)
            patches.replace(c10d, operation.name, make, everywhere=True)
        self._works.install(patches, c10d.Work)

    def _wrapper(self, operation: Operation, original: Function) -> Function:
        recorder, inside, begin = self._recorder, self._inside, self._begin
        torch: Any = sys.modules["torch"]

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not recorder.active or inside.busy:
                return original(*args, **kwargs)
            begun = begin(operation, args, kwargs)
            if begun is None:
                return original(*args, **kwargs)
            op, asynchronous, on_device = begun
            inside.busy = True
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                recorder.collectives.end(op, error=error)
                raise
            finally:
                inside.busy = False
            self._end(op, result, asynchronous, on_device)
            return result

        return call

    def _begin(
        self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Op | None, bool, bool] | None:
        """Begin to record a call; None where there is nothing to record."""
        recorder = self._recorder
        try:
            found = self._groups.resolve(argument(operation.group, args, kwargs))
            if found is None:
                return None
            process_group, group = found
            if recorder.counter.comm_source is None:
                recorder.counter.watch_comm("patch")
            asynchronous = operation.returns_work or bool(argument(operation.async_op, args, kwargs))
            what = content(argument(operation.tensors, args, kwargs))
            op = recorder.collectives.begin(
                operation.name,
                group,
                nbytes=what.nbytes,
                shape=what.shape,
                dtype=what.dtype,
                async_op=asynchronous,
                peer=self._peer(operation, process_group, args, kwargs),
                in_splits=argument(operation.in_splits, args, kwargs),
                out_splits=argument(operation.out_splits, args, kwargs),
                seq=next_seq(process_group) if operation.has_seq else None,
            )
        except Exception as error:
            recorder.count_error(f"collectives.{operation.name}", error)
            return None
        return op, asynchronous, what.on_device

    def _end(self, op: Op | None, result: Any, asynchronous: bool, on_device: bool) -> None:
        log = self._recorder.collectives
        if asynchronous and result is not None:
            log.launched(op)
            self._works.follow(result, op, on_device)
        else:
            # work on a device that was only enqueued: its time says how long the launch took
            log.end(op, timing_source="enqueue" if on_device else "sync")
        if self._generation.pending:
            self._generation.settle()

    def _peer(self, operation: Operation, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        if operation.peer is None:
            return None
        peer = argument(operation.peer, args, kwargs)
        if peer is not None:
            return int(peer)
        inner = kwargs.get(operation.group_peer or "")
        return None if inner is None else self._groups.global_rank(group, int(inner))
