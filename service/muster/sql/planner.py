"""From statements to a plan. See `plan` for the shapes and docs/sql.md for the rules."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from sqlglot import exp

from muster.errors import Internal, MusterError, SqlForbidden, TooLarge
from muster.model import ColumnType
from muster.sql import clock, information, params
from muster.sql.bind import Binder
from muster.sql.builder import Builder, gateway_relations, identifier
from muster.sql.canonical import canonical
from muster.sql.dialect import write
from muster.sql.distribute import RULES, Rule, distribute
from muster.sql.exactness import exactness
from muster.sql.guard import guard
from muster.sql.plan import Catalogue, Exactness, Fragment, Merge, OutputColumn, Plan, Scalar, Statement, Wave
from muster.sql.scalars import placeholders
from muster.sql.scopes import is_bare_star, output_name
from muster.sql.unite import united
from muster.sql.waves import extract

T = TypeVar("T")
CACHED_PLANS = 512
CACHED_CATALOGUES = 16


@dataclass(frozen=True, slots=True)
class _Planned:
    """One statement planned by itself: the tables that it reads, and whether the plan holds for any moment."""

    waves: tuple[Wave, ...]
    merge: Merge
    reads: frozenset[str]
    timeless: bool


class Planner:
    """Plans statements against a catalogue. Thread-safe.

    Plans are kept by text, parameters, and the columns of the tables that the statement reads: what else a job offers
    makes no difference to them.
    """

    def __init__(self, *, cached_plans: int = CACHED_PLANS, rules: tuple[Rule, ...] = RULES) -> None:
        """`rules` are the routes to try before gathering rows; without any, every table is gathered."""
        self._rules = rules
        self._lock = threading.Lock()
        self._reads: OrderedDict[object, frozenset[str]] = OrderedDict()  # tables of a text
        self._plans: OrderedDict[object, _Planned] = OrderedDict()
        self._joint: OrderedDict[object, Plan] = OrderedDict()
        self._binders: OrderedDict[object, Binder] = OrderedDict()
        self._cached_plans = cached_plans

    def plan(self, statements: Sequence[Statement], catalogue: Catalogue, *, now: datetime | None = None) -> Plan:
        """One plan for all statements: equal fragments are fetched once, wave by wave.

        `now` (aware) is what the clock of the statements shows, by default the moment of this call.
        Raises BadRequest (SqlSyntax, SqlForbidden, SqlBind, ParameterError), TooLarge or NotDistributable, with the
        member `statement` naming the one at fault.
        """
        moment = now or datetime.now(UTC)
        joint = tuple(self._key(s, catalogue) for s in statements)
        known = _kept(self._lock, self._joint, joint) if None not in joint else None
        if known is not None:
            return known
        binder = self._binder(catalogue)
        planned = []
        for statement in statements:
            try:
                planned.append(self._one(statement, catalogue, binder, moment))
            except MusterError as error:
                error.extra.setdefault("statement", statement.id)
                raise
        plan = Plan(_joined([p.waves for p in planned]), tuple(p.merge for p in planned))
        plan = united(plan, {t: [c.name for c in binder.columns(t)] for f in plan.fragments for t in f.tables})
        if all(p.timeless for p in planned):
            self._keep(self._joint, tuple(self._key(s, catalogue) for s in statements), plan)
        return plan

    def _binder(self, catalogue: Catalogue) -> Binder:
        key = (tuple(sorted(catalogue.tables.items())), catalogue.owned)
        known = _kept(self._lock, self._binders, key)
        if known is not None:
            return known
        made = Binder(catalogue)
        with self._lock:
            kept = self._binders.setdefault(key, made)
            while len(self._binders) > CACHED_CATALOGUES:
                self._binders.popitem(last=False)
        return kept

    def _one(self, statement: Statement, catalogue: Catalogue, binder: Binder, now: datetime) -> _Planned:
        params.check(statement.params)
        key = self._key(statement, catalogue)
        known = _kept(self._lock, self._plans, key) if key is not None else None
        if known is not None:
            return known
        planned = _plan(statement, catalogue, binder, now, self._rules)
        self._keep(self._reads, statement.sql, planned.reads)
        key = self._key(statement, catalogue)
        if planned.timeless and key is not None:
            self._keep(self._plans, key, planned)
        return planned

    def _key(self, statement: Statement, catalogue: Catalogue) -> object | None:
        """What the plan of a statement depends on; None for a text that was not read before."""
        reads = _kept(self._lock, self._reads, statement.sql)
        if reads is None:
            return None
        tables = tuple((t, catalogue.tables.get(t), t in catalogue.owned) for t in sorted(reads))
        values = tuple(sorted((name, type(v).__name__, repr(v)) for name, v in statement.params.items()))
        alike = (catalogue.states, catalogue.pushdown, catalogue.why_not)
        return statement.id, statement.sql, values, statement.use_global, tables, alike

    def _keep(self, plans: OrderedDict[object, T], key: object, plan: T) -> None:
        with self._lock:
            plans[key] = plan
            while len(plans) > self._cached_plans:
                plans.popitem(last=False)


def _kept(lock: threading.Lock, plans: OrderedDict[object, T], key: object) -> T | None:
    with lock:
        if key in plans:
            plans.move_to_end(key)
            return plans[key]
    return None


def _plan(statement: Statement, catalogue: Catalogue, binder: Binder, now: datetime, rules: tuple[Rule, ...]) -> _Planned:
    guarded = guard(statement.sql, tables=binder.names)
    try:
        binder.prepare(guarded.tables)
        tree = guarded.tree.copy()
        text = write(tree) if information.rename(tree) else statement.sql
        names = _names(text, statement, tree, binder)
        params.bind(tree, statement.params)
        timeless = not clock.reads_clock(tree)
        clock.freeze(tree, now)
        types = binder.describe(write(tree))
        if len(types) != len(names):
            raise SqlForbidden(
                "The statement cannot be written again without a change of its columns.",
                hint="Name the columns instead of using a star.",
            )
        columns = tuple(ColumnType(n.name, t.type) for n, t in zip(names, types, strict=True))
        canonical(tree)
        exact = exactness(tree, binder, len(columns), states=catalogue.states)
        builder = Builder(binder, catalogue, use_global=statement.use_global)
        rules = rules if catalogue.pushdown else ()
        extract(tree, builder, lambda query, to: distribute(query, to, rules))
        tree = distribute(tree, builder, rules)
        merge = _merge(statement.id, tree, columns, exact, builder)
        return _Planned(builder.waves(), merge, guarded.tables, timeless)
    except RecursionError:
        raise TooLarge("The statement nests too deeply.", hint="Name its parts in a WITH clause.") from None


def _names(text: str, statement: Statement, tree: exp.Query, binder: Binder) -> tuple[ColumnType, ...]:
    """Output names as the engine makes them up from the user's own text, parameters left as they stand."""
    wanted = set(placeholders(tree))
    given = {name: value for name, value in statement.params.items() if name in wanted}
    if wanted - set(given):
        params.bind(tree.copy(), statement.params)  # names the parameter that is missing
    return binder.describe(text, given)


def _merge(
    statement: str, tree: exp.Query, columns: tuple[ColumnType, ...], exact: Sequence[Exactness], builder: Builder
) -> Merge:
    found = builder.describe(tree)
    if [c.type for c in found] != [c.type for c in columns]:
        raise Internal(
            f"The plan of {statement} gives {[c.type for c in found]}, the statement {[c.type for c in columns]}."
        )
    _name_outputs(tree, columns)
    outputs = tuple(OutputColumn(c.name, c.type, label) for c, label in zip(columns, exact, strict=True))
    return Merge(
        statement=statement,
        sql=write(tree),
        columns=outputs,
        fragments=builder.used(tree),
        scalars=placeholders(tree),
        relations=gateway_relations(tree),
    )


def _name_outputs(tree: exp.Query, columns: tuple[ColumnType, ...]) -> None:
    """Give the output columns of a SELECT without a star the names that the statement's would have."""
    if not isinstance(tree, exp.Select) or len(tree.expressions) != len(columns):
        return
    if any(is_bare_star(n) for p in tree.expressions for n in p.walk()):
        return
    for projection, wanted in zip(list(tree.expressions), columns, strict=True):
        if output_name(projection) is None:
            projection.replace(exp.Alias(this=projection.copy(), alias=identifier(wanted.name)))


def _joined(plans: Sequence[tuple[Wave, ...]]) -> tuple[Wave, ...]:
    waves = []
    seen_fragments: set[str] = set()
    seen_scalars: set[str] = set()
    for i in range(max((len(p) for p in plans), default=0)):
        fragments: dict[str, Fragment] = {}
        scalars: dict[str, Scalar] = {}
        for plan in plans:
            if i < len(plan):
                fragments |= {f.id: f for f in plan[i].fragments if f.id not in seen_fragments}
                scalars |= {s.id: s for s in plan[i].scalars if s.id not in seen_scalars}
        seen_fragments |= set(fragments)
        seen_scalars |= set(scalars)
        waves.append(Wave(tuple(fragments.values()), tuple(scalars.values())))
    return tuple(waves)
