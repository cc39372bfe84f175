"""Plain collectives: the functions of torch.distributed, recorded once each, whatever they call inside."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from muster.probe.collectives import Op
from muster.probe.collectors.groups import Groups, KnownGroup
from muster.probe.collectors.ops import SPECS, Call, Spec, reader
from muster.probe.collectors.patching import Patches
from muster.probe.collectors.works import Works
from muster.probe.recorder import Recorder

PATCH = "patch"


class Inside(threading.local):
    """Whether this thread is inside an operation that is being recorded: then what it calls is part of it."""

    operation = False


class DtypeNames(dict[Any, str]):
    """`float32` for `torch.float32`."""

    def __missing__(self, dtype: Any) -> str:
        name = self[dtype] = str(dtype).removeprefix("torch.")
        return name


class Collectives:
    """Records calls. Made when torch.distributed.distributed_c10d has been imported."""

    def __init__(self, recorder: Recorder, c10d: ModuleType, works: Works) -> None:
        self.recorder = recorder
        self.log = recorder.collectives
        self.works = works
        self.groups = Groups(recorder, c10d)
        self.inside = Inside()
        self.dtypes = DtypeNames()
        self._c10d = c10d
        self._world = c10d._world
        self.is_compiling: Callable[[], bool] = bool  # torch.compiler's own, once that is imported: the tracer knows it

    def install(self, patches: Patches) -> None:
        """Replace the functions, and the waits."""
        c10d = self._c10d
        for name, spec in SPECS.items():
            patches.replace(c10d, name, partial(self._wrap, name, spec))
        patches.replace(c10d, "batch_isend_irecv", self._batch)
        patches.replace(c10d, "_coalescing_manager", self._coalescing)
        patches.replace(c10d.Work, "wait", self.works.timed)
        patches.replace(c10d.Work, "get_future", self.works.hand_over)
        patches.replace(sys.modules["torch"]._C.Future, "wait", self.works.timed)

    def _wrap(self, name: str, spec: Spec, original: Any) -> Any:
        return self.wrap(original, name.lstrip("_"), spec)

    def passes(self) -> bool:
        """Whether a call is none of ours: the recording is over or in another process, the call is part of one that is
        recorded, or a compiler is tracing it (the first test, since the tracer reads on until here)."""
        return self.is_compiling() or self.inside.operation or not self.recorder.active

    def wrap(self, original: Any, op_name: str, spec: Spec) -> Any:
        """A function that records and calls `original`."""
        read = reader(original, spec, self.dtypes.__getitem__)
        passes, inside = self.passes, self.inside

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if passes():
                return original(*args, **kwargs)
            begun = self._begin(op_name, spec, read, args, kwargs)
            if begun is None:
                return original(*args, **kwargs)
            op, call, known, number = begun
            inside.operation = True
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self.log.end(op, timing_source=self._source(spec, call), error=error)
                raise
            finally:
                inside.operation = False
                if number is not None:
                    known.passed((self._number(known) or 0) - number)
            if call.async_op and result is not None:
                self.log.launched(op)
                self._track(result, op, "wait" if call.on_cpu or spec.blocks else "enqueue")
            else:
                self.log.end(op, timing_source=self._source(spec, call))
            return result

        return recorded

    def _begin(
        self, op_name: str, spec: Spec, read: Callable[..., Call], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Op | None, Call, KnownGroup, int | None] | None:
        """None for a call that is not to be recorded."""
        try:
            call = read(args, kwargs)
            pg = self.groups.member(call.group)
            if pg is None or pg in self._world.pg_coalesce_state:
                return None
            known = self.groups.known(pg)
            group = known.group
            if group.rank is None:
                return None
            self.works.sweep()
            number = known.sequence(pg)
            peer = call.peer
            if peer is not None and call.peer_in_group and group.ranks is not None:
                peer = group.ranks[peer]
            op = self.log.begin(
                op_name, group, nbytes=call.nbytes, shape=call.shape, dtype=call.dtype, async_op=call.async_op,
                peer=peer, in_splits=call.in_splits, out_splits=call.out_splits,
                seq=number + 1 if spec.numbered and number is not None else None,
            )  # fmt: skip
            return op, call, known, None if spec.numbered else number
        except Exception as error:
            self.recorder.count_error(f"collectives.{op_name}", error)
            return None

    def _track(self, result: Any, op: Op | None, source: str) -> None:
        try:
            self.works.track(result, op, source)
        except Exception as error:
            self.recorder.count_error("collectives.track", error)
            self.log.end(op, timing_source=source)

    @staticmethod
    def _number(known: KnownGroup) -> int | None:
        pg = known.pg()
        return None if pg is None else known.sequence(pg)

    @staticmethod
    def _source(spec: Spec, call: Call) -> str:
        return "sync" if call.on_cpu or spec.blocks else "enqueue"

    def _batch(self, original: Any) -> Any:
        """A batch of sends and receives. Backends that send them one by one are recorded one by one; a batch that goes out
        as one is one operation."""

        @functools.wraps(original)
        def batch_isend_irecv(p2p_op_list: Any) -> Any:
            if self.passes():
                return original(p2p_op_list)
            begun = self._begin_batch(p2p_op_list)
            if begun is None:
                return original(p2p_op_list)
            op, source = begun
            self.inside.operation = True
            try:
                works = original(p2p_op_list)
            except BaseException as error:
                self.log.end(op, timing_source=source, error=error)
                raise
            finally:
                self.inside.operation = False
            self.log.launched(op)
            if works:
                self._track(works[-1], op, source)
            else:
                self.log.end(op, timing_source=source)
            return works

        return batch_isend_irecv

    def _begin_batch(self, operations: Any) -> tuple[Op | None, str] | None:
        try:
            first = operations[0]
            pg = self.groups.member(first.group)
            device = first.tensor.device
            if type(pg) is not self._c10d.ProcessGroup or not pg._get_backend(device).supports_coalescing:
                return None
            op = self.log.begin(
                "batch_isend_irecv", self.groups.known(pg).group, nbytes=sum(o.tensor.nbytes for o in operations),
                shape=tuple(first.tensor.shape), dtype=self.dtypes[first.tensor.dtype], async_op=True,
            )  # fmt: skip
            return op, "wait" if first.tensor.is_cpu else "enqueue"
        except Exception as error:
            self.recorder.count_error("collectives.batch_isend_irecv", error)
            return None

    def _coalescing(self, original: Any) -> Any:
        """Operations collected by torch's coalescing manager are one operation, which begins when the collecting ends."""

        @functools.wraps(original)
        @contextmanager
        def coalescing_manager(*args: Any, **kwargs: Any) -> Iterator[Any]:
            if self.passes():
                with original(*args, **kwargs) as manager:
                    yield manager
                return
            op: Op | None = None
            source = "sync"
            try:
                with original(*args, **kwargs) as manager:
                    yield manager
                    op, source = self._begin_coalesced(*args, **kwargs)
                    self.inside.operation = True
            except BaseException as error:
                self.log.end(op, timing_source=source, error=error)
                raise
            finally:
                self.inside.operation = False
            works = getattr(manager, "works", None)
            if works:
                self.log.launched(op)
                self._track(works[-1], op, "wait" if source == "sync" else source)
            else:
                self.log.end(op, timing_source=source)

        return coalescing_manager

    def _begin_coalesced(self, group: Any = None, device: Any = None, async_ops: bool = False) -> tuple[Op | None, str]:
        try:
            pg = self.groups.member(group)
            collected = self._world.pg_coalesce_state.get(pg) or ()
            if pg is None or not collected:
                return None, "sync"
            known = self.groups.known(pg)
            tensors = [c.dst_tensor if c.dst_tensor is not None else c.tensor for c in collected]
            first = collected[0].tensor
            number = known.sequence(pg)
            op = self.log.begin(
                f"{collected[0].op.__name__}_coalesced", known.group, nbytes=sum(t.nbytes for t in tensors),
                shape=tuple(first.shape), dtype=self.dtypes[first.dtype], async_op=async_ops,
                seq=None if number is None else number + 1,
            )  # fmt: skip
            return op, "sync" if first.is_cpu else "enqueue"
        except Exception as error:
            self.recorder.count_error("collectives.coalescing", error)
            return None, "sync"
