"""Send the fragments of one wave to all shards at once, one request for each, and take what comes before the deadline."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pyarrow as pa

from muster.errors import Busy, MusterError, OverBudget, StatementFailed
from muster.federation.coverage import Outcome, outcome_of, state_of
from muster.federation.shards.base import Shard, ShardFactory
from muster.model import JobView, RankState, ShardInfo
from muster.protocol import RankRef, SubQuery

_RESERVE = 0.15  # of the time that is left, for merging


@dataclass(frozen=True, slots=True)
class Budget:
    """What one request may move: rows and bytes per fragment and shard, bytes in all."""

    rows: int = 1_000_000
    shard_bytes: int = 64 << 20
    total_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class Ask:
    """One fragment as it is sent: SQL, expected schema, the ranks it is limited to (None: all)."""

    id: str
    sql: str
    schema: pa.Schema
    ranks: frozenset[int] | None
    table: str


class Gate:
    """Bounds how many requests fan out at once."""

    def __init__(self, at_once: int) -> None:
        self._limiter = anyio.Semaphore(at_once)

    @asynccontextmanager
    async def passed(self, wait_s: float) -> AsyncIterator[None]:
        """Hold a place. Raises Busy when none is free within `wait_s` seconds."""
        try:
            with anyio.fail_after(wait_s):
                await self._limiter.acquire()
        except TimeoutError:
            raise Busy("Too many queries are under way.", hint="Ask again in a moment.") from None
        try:
            yield
        finally:
            self._limiter.release()


class FanOut:
    """Asks the shards of a job. Holds no state of a request."""

    def __init__(self, shards: ShardFactory) -> None:
        self._shards = shards

    async def ask(self, asks: Sequence[Ask], view: JobView, budget: Budget, until: float) -> dict[str, list[Outcome]]:
        """What each shard made of each fragment, by fragment id. `until` is on the monotonic clock.

        Raises OverBudget when too much travelled in all; whatever else goes wrong is an outcome.
        """
        outcomes: dict[str, list[Outcome]] = {a.id: [] for a in asks}
        generations = {r.rank: r.generation for r in view.ranks}
        deadline_s = max(0.05, (until - time.monotonic()) * (1 - _RESERVE))
        async with anyio.create_task_group() as group:
            for info in view.shards:
                group.start_soon(self._one, info, asks, generations, budget, deadline_s, outcomes)
        moved = sum(o.answer.nbytes for found in outcomes.values() for o in found if o.answer is not None)
        if moved > budget.total_bytes:
            raise OverBudget(
                f"The fragments moved {moved} bytes; at most {budget.total_bytes} are allowed.",
                hint="Filter on steps or ranks, or aggregate.",
            )
        return outcomes

    async def _one(
        self,
        info: ShardInfo,
        asks: Sequence[Ask],
        generations: Mapping[int, str | None],
        budget: Budget,
        deadline_s: float,
        outcomes: dict[str, list[Outcome]],
    ) -> None:
        """Ask one shard for whatever concerns it. Fragments that want other ranks of it go in requests of their own."""
        by_ranks: dict[tuple[int, ...], list[Ask]] = {}
        for ask in asks:
            mine = info.ranks if ask.ranks is None else tuple(r for r in info.ranks if r in ask.ranks)
            pruned = tuple(r for r in info.ranks if r not in mine)
            if pruned:
                outcomes[ask.id].append(Outcome(info, pruned, RankState.PRUNED))
            if not mine:
                continue
            if info.tables is not None and ask.table and ask.table not in info.tables:
                outcomes[ask.id].append(Outcome(info, mine, RankState.NO_TABLE, f"{info.addr} has no table {ask.table}"))
                continue
            by_ranks.setdefault(mine, []).append(ask)
        shard = self._shards(info)
        async with anyio.create_task_group() as group:
            for ranks, wanted in by_ranks.items():
                group.start_soon(self._request, shard, ranks, wanted, generations, budget, deadline_s, outcomes)

    async def _request(
        self,
        shard: Shard,
        ranks: tuple[int, ...],
        asks: Sequence[Ask],
        generations: Mapping[int, str | None],
        budget: Budget,
        deadline_s: float,
        outcomes: dict[str, list[Outcome]],
    ) -> None:
        own_ms = max(1, int(deadline_s * 900))
        queries = [
            SubQuery(id=a.id, sql=a.sql, deadline_ms=own_ms, max_rows=budget.rows, max_bytes=budget.shard_bytes)
            for a in asks
        ]
        refs = [RankRef(rank=r, generation=generations.get(r) or "") for r in ranks]
        try:
            answers = await shard.query(queries, refs, {a.id: a.schema for a in asks}, deadline_s)
        except MusterError as error:
            for ask in asks:
                outcomes[ask.id].append(Outcome(shard.info, ranks, state_of(error), error.detail))
            return
        for ask, answer in zip(asks, answers, strict=True):
            outcomes[ask.id].append(outcome_of(shard.info, ranks, answer))


def own_error(outcomes: Sequence[Outcome]) -> MusterError | None:
    """An error that any shard would give (a bad cast, a division, too many rows) is the statement's, not a rank's."""
    for outcome in outcomes:
        error = outcome.answer.error if outcome.answer is not None else None
        if isinstance(error, StatementFailed | OverBudget):
            return error
    return None
