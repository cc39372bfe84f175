"""Answer statements over a whole job: plan, fan out wave by wave, merge, and say what the answer rests on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import anyio.to_thread
import pyarrow as pa

from muster.errors import MusterError
from muster.federation.catalogue import catalogue_of
from muster.federation.coverage import Outcome, coverage_of
from muster.federation.fanout import Ask, Budget, FanOut, Gate, own_error
from muster.federation.merge import Merger, Session
from muster.federation.relations import relation_of
from muster.federation.shards.base import ShardFactory
from muster.model import Coverage, JobView
from muster.sql.plan import Catalogue, Fragment, Merge, OutputColumn, Plan, Scalar, Statement
from muster.sql.planner import Planner
from muster.sql.scalars import substitute

Lane = Literal["diagnosis", "adhoc"]


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The answer to one statement, or its error. `bytes_moved` and `waves` are those of all statements asked together."""

    id: str
    table: pa.Table | None
    columns: tuple[OutputColumn, ...]
    coverage: Coverage
    error: MusterError | None = None
    elapsed_ms: float = 0.0
    bytes_moved: int = 0
    waves: int = 0


@dataclass(frozen=True, slots=True)
class _Done:
    table: pa.Table | None
    columns: tuple[OutputColumn, ...]
    coverage: Coverage
    error: MusterError | None


@dataclass(slots=True)
class _Run:
    """What one request has so far."""

    view: JobView
    catalogue: Catalogue
    budget: Budget
    until: float
    values: dict[str, tuple[object, str]] = field(default_factory=dict)
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    failed: dict[str, MusterError] = field(default_factory=dict)  # fragments and scalars that cannot be had


class Federation:
    """Runs statements. Diagnoses and ad-hoc SQL have a database and a gate each, so that neither starves the other."""

    def __init__(
        self,
        *,
        planner: Planner,
        shards: ShardFactory,
        mergers: Mapping[Lane, Merger],
        at_once: Mapping[Lane, int],
        budget: Budget | None = None,
    ) -> None:
        self._planner = planner
        self._fanout = FanOut(shards)
        self._mergers = mergers
        self._budget = budget or Budget()
        self._gates: dict[Lane, Gate] = {lane: Gate(n) for lane, n in at_once.items()}

    async def run(
        self,
        statements: Sequence[Statement],
        view: JobView,
        *,
        deadline_s: float = 10.0,
        budget: Budget | None = None,
        lane: Lane = "diagnosis",
    ) -> dict[str, StatementResult]:
        """The answer to each statement, by its id. An error of one does not lose the others.

        Raises Busy when the gate stays shut, OverBudget when all of it together is too much.
        """
        started = time.monotonic()
        catalogue = catalogue_of(view)
        run = _Run(view, catalogue, budget or self._budget, started + deadline_s)
        plan, refused = await anyio.to_thread.run_sync(self._plan, statements, view, catalogue)
        async with self._gates[lane].passed(deadline_s / 2):
            session = self._mergers[lane].session(run.until)
            try:
                await self._waves(plan, run, session, self._mergers[lane])
                found = {m.statement: await self._finish(m, plan, run, session) for m in plan.merges}
            finally:
                session.close()
        elapsed = (time.monotonic() - started) * 1000
        moved = sum(o.answer.nbytes for outs in run.outcomes.values() for o in outs if o.answer is not None)
        waves = sum(1 for w in plan.waves if w.fragments)
        results = {}
        for statement in statements:
            if statement.id in refused:
                done = _Done(None, (), coverage_of(view, []), refused[statement.id])
            else:
                done = found[statement.id]
            results[statement.id] = StatementResult(
                statement.id, done.table, done.columns, done.coverage, done.error, elapsed, moved, waves
            )
        return results

    async def plan(self, statements: Sequence[Statement], view: JobView) -> tuple[Plan, dict[str, MusterError]]:
        """One plan for all statements that can be planned, and the errors of those that cannot."""
        return await anyio.to_thread.run_sync(self._plan, statements, view, catalogue_of(view))

    def _plan(
        self, statements: Sequence[Statement], view: JobView, catalogue: Catalogue
    ) -> tuple[Plan, dict[str, MusterError]]:
        try:
            return self._planner.plan(statements, catalogue, now=view.taken_at), {}
        except MusterError:
            refused: dict[str, MusterError] = {}
        good = []
        for statement in statements:
            try:
                self._planner.plan([statement], catalogue, now=view.taken_at)
                good.append(statement)
            except MusterError as error:
                refused[statement.id] = error
        return self._planner.plan(good, catalogue, now=view.taken_at), refused

    async def _waves(self, plan: Plan, run: _Run, session: Session, merger: Merger) -> None:
        readers: list[Merge | Scalar] = [*plan.merges, *(s for w in plan.waves for s in w.scalars)]
        for name in sorted({n for reader in readers for n in reader.relations}):
            await session.add_relation(name, relation_of(name, run.view))
        for wave in plan.waves:
            await self._fetch([f for f in wave.fragments if not _blocked(f.scalars, run)], run, session, merger)
            for fragment in wave.fragments:
                for name in fragment.scalars:
                    if name in run.failed:
                        run.failed[fragment.id] = run.failed[name]
            for scalar in wave.scalars:
                await self._compute(scalar, run, session)

    async def _fetch(self, fragments: Sequence[Fragment], run: _Run, session: Session, merger: Merger) -> None:
        if not fragments:
            return
        asks = [Ask(f.id, _filled(f, run.values), merger.schema(f), f.tables, f.pins) for f in fragments]
        outcomes = await self._fanout.ask(asks, run.view, run.budget, run.until, run.catalogue.tables)
        run.outcomes |= outcomes
        for fragment, ask in zip(fragments, asks, strict=True):
            error = own_error(ask, outcomes[fragment.id], run.budget)
            if error is not None:
                run.failed[fragment.id] = error
                continue
            parts = [o.table for o in outcomes[fragment.id] if o.table is not None]
            await session.add(fragment, parts, merger.schema(fragment))

    async def _compute(self, scalar: Scalar, run: _Run, session: Session) -> None:
        for needed in (*scalar.fragments, *scalar.scalars):
            if needed in run.failed:
                run.failed[scalar.id] = run.failed[needed]
                return
        try:
            run.values[scalar.id] = (await session.scalar(scalar, run.values), scalar.type)
        except MusterError as error:
            run.failed[scalar.id] = error

    async def _finish(self, merge: Merge, plan: Plan, run: _Run, session: Session) -> _Done:
        used = fragments_of(merge, plan)
        coverage = coverage_of(run.view, [run.outcomes.get(f, []) for f in used])
        for needed in (*used, *merge.scalars):
            if needed in run.failed:
                return _Done(None, merge.columns, coverage, run.failed[needed])
        try:
            return _Done(await session.merge(merge, run.values), merge.columns, coverage, None)
        except MusterError as error:
            return _Done(None, merge.columns, coverage, error)


def fragments_of(merge: Merge, plan: Plan) -> list[str]:
    """Every fragment that a statement rests on, those of its scalars included."""
    scalars = {s.id: s for w in plan.waves for s in w.scalars}
    fragments = {f.id: f for f in plan.fragments}
    found: dict[str, None] = {}
    left: list[str] = [*merge.fragments, *merge.scalars]
    while left:
        name = left.pop()
        if name in found:
            continue
        if name in fragments:
            found[name] = None
            left += fragments[name].scalars
        elif name in scalars:
            left += [*scalars[name].fragments, *scalars[name].scalars]
    return list(found)


def _blocked(scalars: Sequence[str], run: _Run) -> bool:
    return any(s in run.failed for s in scalars)


def _filled(fragment: Fragment, values: Mapping[str, tuple[object, str]]) -> str:
    wanted = {s: values[s] for s in fragment.scalars}
    return substitute(fragment.sql, wanted) if wanted else fragment.sql
