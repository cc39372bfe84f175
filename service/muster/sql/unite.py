"""Rows of one table that several parts of a plan gather are fetched once.

A gathered fragment is a projection and a filter, and the merge statements filter again as they were written. So a fragment
may be served by another one of the same table that holds all of its rows: one with the same filter (the columns are
united), or one with fewer conditions and all of its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from muster.errors import Internal
from muster.model import ColumnType
from muster.sql.builder import column, fragment_id
from muster.sql.dialect import DIALECT, write
from muster.sql.plan import Fragment, Merge, Pin, Plan, Route, Scalar, Wave
from muster.sql.scopes import conjuncts


@dataclass(slots=True)
class _Rows:
    """A gathered fragment taken apart: what it reads from (the table, or the coordinator's part of it) and under which
    conditions."""

    fragment: Fragment
    query: exp.Select
    source: str
    conditions: frozenset[str]
    columns: dict[str, ColumnType]
    serves: list[str]


def united(plan: Plan, order: Mapping[str, list[str]]) -> Plan:
    """The plan with gathered fragments served by others where that saves rows.

    `order` gives the columns of each table in the order of the table, which a star depends on.
    """
    renamed: dict[str, str] = {}
    waves = []
    for wave in plan.waves:
        fragments, names = _unite_wave(wave, order)
        renamed |= names
        waves.append(Wave(fragments, wave.scalars))
    if not renamed:
        return plan
    return Plan(
        tuple(Wave(w.fragments, tuple(_scalar(s, renamed) for s in w.scalars)) for w in waves),
        tuple(_merge(m, renamed) for m in plan.merges),
    )


def _unite_wave(wave: Wave, order: Mapping[str, list[str]]) -> tuple[tuple[Fragment, ...], dict[str, str]]:
    groups: dict[tuple[str, tuple[Pin, ...]], list[Fragment]] = {}
    for fragment in wave.fragments:
        if fragment.route is Route.GATHER:
            groups.setdefault((fragment.tables[0], fragment.pins), []).append(fragment)
    made: dict[str, Fragment] = {}
    renamed: dict[str, str] = {}
    for (table, _), found in groups.items():
        for rows in _served([_apart(f) for f in found]) if len(found) > 1 else []:
            if rows.serves:
                fragment = _rebuilt(rows, order[table])
                made[rows.fragment.id] = fragment
                renamed |= dict.fromkeys([rows.fragment.id, *rows.serves], fragment.id)
    kept = dict.fromkeys(made.get(f.id, f) for f in wave.fragments if f.id not in renamed or f.id in made)
    return tuple(kept), renamed


def _served(parts: list[_Rows]) -> list[_Rows]:
    """The parts that remain, each with the ids of those that it serves."""
    equal: dict[tuple[str, frozenset[str]], _Rows] = {}
    for part in parts:
        first = equal.setdefault((part.source, part.conditions), part)
        if first is not part:
            first.columns |= part.columns
            first.serves.append(part.fragment.id)
    left = sorted(equal.values(), key=lambda p: len(p.conditions))
    kept: list[_Rows] = []
    for part in left:
        wider = next((k for k in kept if _holds(k, part)), None)
        if wider is None:
            kept.append(part)
        else:
            wider.serves += [part.fragment.id, *part.serves]
    return kept


def _holds(wide: _Rows, narrow: _Rows) -> bool:
    fewer = wide.source == narrow.source and wide.conditions < narrow.conditions
    return fewer and narrow.columns.keys() <= wide.columns.keys()


def _apart(fragment: Fragment) -> _Rows:
    query = DIALECT.parse(fragment.sql)[0]
    if not isinstance(query, exp.Select):
        raise Internal(f"Fragment {fragment.id} gathers, but is no SELECT.")
    where = query.args.get("where")
    conditions = frozenset(write(c) for c in conjuncts(where.this if where is not None else None))
    return _Rows(fragment, query, write(query.args["from_"]), conditions, {c.name: c for c in fragment.columns}, [])


def _rebuilt(rows: _Rows, order: list[str]) -> Fragment:
    names = [n for n in order if n in rows.columns]
    rows.query.set("expressions", [column(n) for n in names])
    sql = write(rows.query)
    columns = tuple(rows.columns[n] for n in names)
    return replace(
        rows.fragment,
        id=fragment_id("\0".join([sql, *map(str, rows.fragment.pins)])),
        sql=sql,
        columns=columns,
        pushed_columns=tuple(names) if len(names) < len(order) else (),
    )


def _scalar(scalar: Scalar, renamed: Mapping[str, str]) -> Scalar:
    return replace(scalar, sql=_text(scalar.sql, renamed), fragments=_names(scalar.fragments, renamed))


def _merge(merge: Merge, renamed: Mapping[str, str]) -> Merge:
    return replace(merge, sql=_text(merge.sql, renamed), fragments=_names(merge.fragments, renamed))


def _text(sql: str, renamed: Mapping[str, str]) -> str:
    for old, new in renamed.items():
        sql = sql.replace(old, new)  # ids are hashes: nothing else is spelled like one
    return sql


def _names(names: tuple[str, ...], renamed: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted({renamed.get(n, n) for n in names}))
