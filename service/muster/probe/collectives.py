"""The log of collective and point-to-point operations: a slot while in flight, a row of python.comm_collective after.

op = recorder.collectives.begin("all_reduce", group, nbytes=4096, shape=(1024,), dtype="float32")
…                                                   # the real call
recorder.collectives.end(op)                        # synchronous: blocked for the whole call

op = recorder.collectives.begin("all_reduce", group, async_op=True)
recorder.collectives.launched(op)                   # the call returned; compute goes on
recorder.collectives.wait_started(op)
recorder.collectives.end(op, timing_source="wait")  # blocked = call + wait
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from time import perf_counter_ns, time_ns
from typing import Any, Protocol

from muster.probe.codec import Prefix
from muster.probe.counter import StepCounter, ThreadState
from muster.probe.ring import Ring

_MAX_CACHED = 4096


class Who(Protocol):
    """The parts of an identity that every row repeats."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int | None: ...
    @property
    def role(self) -> str | None: ...


class Rows(Protocol):
    """Where rows go."""

    def write(self, row: tuple[Any, ...]) -> None: ...


class Slots(Protocol):
    """Where rows live that are not complete yet."""

    def put(self, row: tuple[Any, ...], prefix: Prefix = ...) -> int | None:
        """Write a row into a free slot and return the slot; None when there is none."""

    def replace(self, slot: int, row: tuple[Any, ...], prefix: Prefix = ...) -> None: ...
    def free(self, slot: int) -> None: ...


class Errors(Protocol):
    def count(self, where: str, error: BaseException | str) -> None: ...


class Group:
    """A process group as the log knows it. Two groups are the same only if name and members are: compare by identity.

    `rank` is this process's rank in the group, None where it is no member or nobody said.
    """

    __slots__ = ("name", "rank", "ranks", "ranks_json", "size")

    def __init__(self, name: str | None, ranks: tuple[int, ...] | None, rank: int | None, size: int | None) -> None:
        self.name = name
        self.ranks = ranks
        self.rank = rank
        self.size = size
        self.ranks_json = None if ranks is None else json.dumps(ranks, separators=(",", ":"))


SIGNATURE = (
    "rank", "world_size", "role", "op", "group_rank", "group_size", "participate_ranks", "tensor_shape", "tensor_dtype",
    "bytes", "async_op", "pg_name",
)  # fmt: skip
"""Columns that repeat from step to step: encoded once for each operation, group, shape and type."""
OPEN = (
    "micro_step", "local_step", "global_step", "micro_batches", "seq", "occurrence", "thread_id", "start_ns",
    "wait_start_ns", "peer", "in_splits", "out_splits",
)  # fmt: skip
"""Further columns that are known while an operation is in flight."""


class Op:
    """One operation between its begin and its end. Only the log reads or writes it."""

    __slots__ = (
        "in_splits", "is_main", "launched", "numbers", "occurrence", "out_splits", "peer", "prefix", "seq", "slot",
        "start", "start_ns", "thread_id", "wait_start",
    )  # fmt: skip

    prefix: Prefix
    numbers: tuple[int | None, ...]
    occurrence: int
    thread_id: int
    is_main: bool
    start: int
    start_ns: int
    launched: int | None
    wait_start: int | None
    slot: int | None
    seq: int | None
    peer: int | None
    in_splits: str | None
    out_splits: str | None


class CollectiveLog:
    """Thread-safe; its methods never raise. Times are taken inside `begin`, `launched`, `wait_started` and `end`."""

    def __init__(
        self, who: Who, counter: StepCounter, threads: ThreadState, ring: Ring, slots: Slots, errors: Errors
    ) -> None:
        """`ring` and `slots` take rows whose first columns are `SIGNATURE`, as a prefix."""
        self._who = who
        self._counter = counter
        self._threads = threads
        self._ring = ring
        self._slots = slots
        self._errors = errors
        self._groups: dict[Hashable, Group] = {}
        self._world: Group | None = None
        self._prefixes: dict[Hashable, Prefix] = {}

    def group(self, name: str | None, ranks: Sequence[int] | None = None, rank: int | None = None) -> Group:
        """The group of this name and these members (global ranks), made once. Collectors keep it beside their own
        process-group object and pass it to `begin`."""
        members = None if ranks is None else tuple(ranks)
        key = (name, members)
        found = self._groups.get(key)
        if found is None:
            if members is not None and rank is None and self._who.rank in members:
                rank = members.index(self._who.rank)
            found = Group(name, members, rank, None if members is None else len(members))
            if len(self._groups) < _MAX_CACHED:
                self._groups[key] = found
        return found

    @property
    def world(self) -> Group:
        """The group of all ranks."""
        size = self._who.world_size
        if self._world is None or self._world.size != size:
            self._world = self.group("world", None if size is None else range(size))
        return self._world

    def begin(
        self,
        op: str,
        group: Group,
        *,
        nbytes: int | None = None,
        shape: Sequence[int] | str | None = None,
        dtype: str | None = None,
        async_op: bool = False,
        peer: int | None = None,
        in_splits: Sequence[int] | None = None,
        out_splits: Sequence[int] | None = None,
        seq: int | None = None,
    ) -> Op | None:
        """Note that an operation starts now. Returns what `end` needs; None after an error, which `end` accepts.

        `nbytes`: bytes of the tensors on this rank. `peer`: global rank of the other side of a send or recv.
        `seq`: sequence number in the group where the backend has one; may also be given to `end`.
        """
        try:
            thread = self._threads.own
            counter = self._counter
            step = counter.local_step
            if thread.step != step:
                thread.step = step
                thread.occurrences = {}
            key = (op, group)
            new = Op()
            new.occurrence = thread.occurrences.get(key, 0)
            thread.occurrences[key] = new.occurrence + 1
            if shape.__class__ is list:
                shape = tuple(shape)
            signature = (op, group, shape, dtype, nbytes, async_op)
            prefix = self._prefixes.get(signature)
            new.prefix = self._prefix(signature) if prefix is None else prefix
            new.numbers = (counter.micro_step, step, counter.global_step, counter.micro_batches)
            new.seq = seq
            new.peer = peer
            new.in_splits = None if in_splits is None else _numbers(in_splits)
            new.out_splits = None if out_splits is None else _numbers(out_splits)
            new.launched = new.wait_start = None
            new.thread_id = thread.id
            new.is_main = thread.is_main
            new.start_ns = time_ns()
            new.slot = self._slots.put(
                (
                    *new.numbers, seq, new.occurrence, thread.id, new.start_ns, None, peer, new.in_splits,
                    new.out_splits,
                ),
                new.prefix,
            )  # fmt: skip
            new.start = perf_counter_ns()
        except Exception as error:
            self._errors.count("collective.begin", error)
            return None
        return new

    def launched(self, op: Op | None) -> None:
        """Note that the call of an async operation returned."""
        if op is not None:
            op.launched = perf_counter_ns()

    def wait_started(self, op: Op | None) -> None:
        """Note that the caller now waits for an async operation."""
        if op is None or op.wait_start is not None:
            return
        try:
            op.wait_start = perf_counter_ns()
            if op.slot is not None:
                self._slots.replace(
                    op.slot,
                    (
                        *op.numbers, op.seq, op.occurrence, op.thread_id, op.start_ns,
                        op.start_ns + op.wait_start - op.start, op.peer, op.in_splits, op.out_splits,
                    ),
                    op.prefix,
                )  # fmt: skip
        except Exception as error:
            self._errors.count("collective.wait", error)

    def end(
        self,
        op: Op | None,
        *,
        blocked_ns: int | None = None,
        timing_source: str = "sync",
        error: BaseException | str | None = None,
        seq: int | None = None,
        duration_ns: int | None = None,
    ) -> None:
        """Note that an operation is complete now, write its row and give its slot back.

        `blocked_ns`: how long the caller was blocked; None means call plus wait for an async operation, else the whole
        time. `timing_source`: sync, wait, device (times of the operation itself) or enqueue (launch only).
        `duration_ns`: the operation's own time where something better than begin-to-end is known (device events).
        """
        if op is None:
            return
        now = perf_counter_ns()
        try:
            total = now - op.start
            if blocked_ns is None:
                blocked_ns = total
                if op.launched is not None:
                    blocked_ns = op.launched - op.start
                    if op.wait_start is not None:
                        blocked_ns += now - op.wait_start
            start_ns = op.start_ns
            self._ring.write_prefixed(
                op.prefix,
                (
                    *op.numbers, (total if duration_ns is None else duration_ns) / 1e6,
                    op.seq if seq is None else seq, op.occurrence, op.thread_id, start_ns,
                    None if op.wait_start is None else start_ns + op.wait_start - op.start, start_ns + total,
                    blocked_ns / 1e6, timing_source, op.peer, op.in_splits, op.out_splits,
                    None if error is None else _error_text(error),
                ),
            )  # fmt: skip
            if op.is_main and self._threads.own.is_main:
                self._counter.add_blocked(blocked_ns, timing_source)
        except Exception as problem:
            self._errors.count("collective.end", problem)
        finally:
            self.drop(op)

    def drop(self, op: Op | None) -> None:
        """Give the slot of an operation back without a row (an operation that turned out not to be one)."""
        if op is not None and op.slot is not None:
            slot, op.slot = op.slot, None
            self._slots.free(slot)

    def forget(self) -> None:
        """Rank, world size or role has changed: encode them anew."""
        self._prefixes = {}

    def _prefix(self, signature: tuple[Any, ...]) -> Prefix:
        op, group, shape, dtype, nbytes, async_op = signature
        who = self._who
        text = shape if shape is None or isinstance(shape, str) else _numbers(shape)
        made = self._ring.codec.prefix(
            (
                who.rank, who.world_size, who.role, op, group.rank, group.size, group.ranks_json, text, dtype, nbytes,
                1 if async_op else 0, group.name,
            )
        )  # fmt: skip
        if len(self._prefixes) >= _MAX_CACHED:
            self._prefixes = {}
        self._prefixes[signature] = made
        return made


def _numbers(values: Sequence[int]) -> str:
    return json.dumps([int(n) for n in values], separators=(",", ":"))


def _error_text(error: BaseException | str) -> str:
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"
