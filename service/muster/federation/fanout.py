"""Send the fragments of one wave to all shards at once, one request for each, and take what comes before the deadline."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
import pyarrow as pa

from muster.errors import Busy, MusterError, OverBudget, StatementFailed
from muster.federation.adapt import Adapted, adapted
from muster.federation.coverage import Outcome, outcome_of, state_of
from muster.federation.shards.base import Shard, ShardFactory
from muster.model import ColumnType, JobView, RankInfo, RankState, ShardInfo
from muster.protocol import MAX_DEADLINE_MS, RankRef, SubQuery
from muster.sql.plan import Pin

_RESERVE = 0.15  # of the time that is left, for merging


@dataclass(frozen=True, slots=True)
class Budget:
    """What one request may move: rows and bytes per fragment and shard, bytes in all."""

    rows: int = 1_000_000
    shard_bytes: int = 64 << 20
    total_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class Ask:
    """One fragment as it is sent: SQL, expected schema, tables, and what limits the ranks that it concerns."""

    id: str
    sql: str
    schema: pa.Schema
    tables: tuple[str, ...]
    pins: tuple[Pin, ...] = ()

    def concerns(self, tags: Mapping[str, int | str | None]) -> bool:
        """Whether a rank with these tags can have rows for it."""
        return all(p.admits(tags.get(p.tag)) for p in self.pins)


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


@dataclass(slots=True)
class _Wave:
    """One wave under way."""

    generations: Mapping[int, str | None]
    tags: Mapping[int, Mapping[str, int | str | None]]
    planned: Mapping[str, tuple[ColumnType, ...]]
    budget: Budget
    deadline_s: float
    shards: int
    outcomes: dict[str, list[Outcome]]
    scope: anyio.CancelScope
    moved: dict[str, int] = field(default_factory=dict)  # bytes by fragment
    answered: int = 0  # shards
    over: OverBudget | None = None


class FanOut:
    """Asks the shards of a job. Holds no state of a request."""

    def __init__(self, shards: ShardFactory) -> None:
        self._shards = shards

    async def ask(
        self,
        asks: Sequence[Ask],
        view: JobView,
        budget: Budget,
        until: float,
        planned: Mapping[str, tuple[ColumnType, ...]],
    ) -> dict[str, list[Outcome]]:
        """What each shard made of each fragment, by fragment id. `until` is on the monotonic clock; `planned` are the
        columns of each table that the plan rests on.

        Raises OverBudget as soon as too much has travelled in all, and ends the other requests; whatever else goes wrong is
        an outcome.
        """
        wave = _Wave(
            generations={r.rank: r.generation for r in view.ranks},
            tags={r.rank: _tags(r) for r in view.ranks} if any(a.pins for a in asks) else {},
            planned=planned,
            budget=budget,
            deadline_s=max(0.05, (until - time.monotonic()) * (1 - _RESERVE)),
            shards=len(view.shards),
            outcomes={a.id: [] for a in asks},
            scope=anyio.CancelScope(),
        )
        with wave.scope:
            async with anyio.create_task_group() as group:
                for info in view.shards:
                    group.start_soon(self._one, info, asks, wave)
        if wave.over is not None:
            raise wave.over
        return wave.outcomes

    async def _one(self, info: ShardInfo, asks: Sequence[Ask], wave: _Wave) -> None:
        """Ask one shard for whatever concerns it. Fragments that want other ranks of it go in requests of their own."""
        by_ranks: dict[tuple[int, ...], list[tuple[Ask, Adapted]]] = {}
        for ask in asks:
            mine = tuple(r for r in info.ranks if ask.concerns(wave.tags.get(r, {"_rank": r}))) if ask.pins else info.ranks
            pruned = tuple(r for r in info.ranks if r not in mine)
            if pruned:
                wave.outcomes[ask.id].append(Outcome(info, pruned, RankState.PRUNED))
            if not mine:
                continue
            own = adapted(ask.sql, ask.tables, wave.planned, info.tables)
            if ask.tables and len(own.absent) == len(ask.tables):
                wave.outcomes[ask.id].append(_without(info, mine, own))
            else:
                by_ranks.setdefault(mine, []).append((ask, own))
        shard = self._shards(info)
        async with anyio.create_task_group() as group:
            for ranks, wanted in by_ranks.items():
                group.start_soon(self._request, shard, ranks, wanted, wave)
        wave.answered += 1

    async def _request(
        self, shard: Shard, ranks: tuple[int, ...], asks: Sequence[tuple[Ask, Adapted]], wave: _Wave
    ) -> None:
        own_ms = min(MAX_DEADLINE_MS, max(1, int(wave.deadline_s * 900)))
        rows, most = wave.budget.rows, wave.budget.shard_bytes
        queries = [SubQuery(id=a.id, sql=own.sql, deadline_ms=own_ms, max_rows=rows, max_bytes=most) for a, own in asks]
        refs = [RankRef(rank=r, generation=wave.generations.get(r) or "") for r in ranks]
        try:
            answers = await shard.query(queries, refs, {a.id: a.schema for a, _ in asks}, wave.deadline_s)
        except MusterError as error:
            for ask, _ in asks:
                wave.outcomes[ask.id].append(Outcome(shard.info, ranks, state_of(error), error.detail))
            return
        for (ask, own), answer in zip(asks, answers, strict=True):
            wave.outcomes[ask.id].append(_told(outcome_of(shard.info, ranks, answer), own))
            wave.moved[ask.id] = wave.moved.get(ask.id, 0) + answer.nbytes
        if sum(wave.moved.values()) > wave.budget.total_bytes and wave.over is None:
            wave.over = _over_budget([a for a, _ in asks], wave)
            wave.scope.cancel()


def _tags(rank: RankInfo) -> dict[str, int | str | None]:
    return {
        "_rank": rank.rank,
        "_host": rank.host,
        "_node_rank": rank.node_rank,
        "_local_rank": rank.local_rank,
        "_role": rank.role,
    }


def _without(info: ShardInfo, ranks: tuple[int, ...], own: Adapted) -> Outcome:
    return Outcome(info, ranks, RankState.NO_TABLE, f"{info.addr} has no table {', '.join(own.absent)}")


def _told(outcome: Outcome, own: Adapted) -> Outcome:
    """An outcome with what was adapted for its shard. Where one table of a join is absent, its rows still count."""
    if outcome.state is RankState.ANSWERED and own.absent:
        reason = f"{outcome.shard.addr} has no table {', '.join(own.absent)}"
        outcome = replace(outcome, state=RankState.NO_TABLE, reason=reason)
    return replace(outcome, lacking=own.lacking, unlike=own.unlike)


def _over_budget(asks: Sequence[Ask], wave: _Wave) -> OverBudget:
    """Names the fragment that moved most and guesses the whole from the shards that have answered."""
    largest = max(wave.moved, key=lambda f: wave.moved[f])
    tables = next((a.tables for a in asks if a.id == largest), ())
    moved, done = sum(wave.moved.values()), wave.answered + 1
    whole = moved * wave.shards // done
    return OverBudget(
        f"The fragments moved {moved:,} bytes from {done} of {wave.shards} shards, which makes about {whole:,} in all;"
        f" at most {wave.budget.total_bytes:,} are allowed. Most of it is fragment {largest}"
        + (f" over {', '.join(tables)}." if tables else "."),
        hint=WAY_OUT,
        fragment=largest,
        estimate_bytes=whole,
    )


WAY_OUT = (
    "Filter on steps, ranks or time, name fewer columns, or aggregate (per _rank costs least)."
    " The explanation of the statement shows what each fragment moves and why."
)


def own_error(ask: Ask, outcomes: Sequence[Outcome], budget: Budget) -> MusterError | None:
    """An error that any shard would give (a bad cast, a division, too many rows) is the statement's, not a rank's."""
    found = [o for o in outcomes if o.answer is not None and isinstance(o.answer.error, StatementFailed | OverBudget)]
    if not found or found[0].answer is None or found[0].answer.error is None:
        return None
    error = found[0].answer.error
    if isinstance(error, StatementFailed):
        return error
    return OverBudget(
        f"Fragment {ask.id} over {', '.join(ask.tables)} is too large on {len(found)} of {len(outcomes)} shards:"
        f" {error.detail.rstrip('.')} at {found[0].shard.addr}; in all it is more than {len(found) * budget.rows:,} rows or"
        f" {len(found) * budget.shard_bytes:,} bytes.",
        hint=WAY_OUT,
        fragment=ask.id,
    )
