"""The keys of a GROUP BY, plain or in grouping sets, and the same GROUP BY over other columns.

Shards always group by all keys, the finest of the sets; the gateway groups what they send by the sets as written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from muster.sql.dialect import write
from muster.sql.placement import group_keys, is_plain_group
from muster.sql.scopes import clauses, function_name, holds_aggregate, own_nodes, unaliased

_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple, exp.Paren)
_OPAQUE = (exp.Query, exp.Window, exp.Lambda, exp.Comprehension, exp.Star)


@dataclass(frozen=True, slots=True)
class Grouping:
    """`keys` are the distinct key expressions; `sets`, where there are grouping sets, is the GROUP BY of which they are the
    leaves; `calls` are the GROUPING() calls of the SELECT, by their text."""

    keys: tuple[exp.Expr, ...] = ()
    sets: exp.Group | None = None
    calls: Mapping[str, exp.Expr] | None = None

    def over(self, column: Callable[[int], exp.Expr]) -> exp.Group | None:
        """The GROUP BY with column `i` in place of key `i`; None where there is none."""
        if self.sets is None:
            return exp.Group(expressions=[column(i) for i in range(len(self.keys))]) if self.keys else None
        made = self.sets.copy()
        _replace(made, self._places(), column)
        return made

    def call_over(self, call: exp.Expr, column: Callable[[int], exp.Expr]) -> exp.Expr:
        """A GROUPING() call with columns in place of the keys."""
        made = call.copy()
        _replace(made, self._places(), column)
        return made

    def _places(self) -> dict[str, int]:
        return {write(key): i for i, key in enumerate(self.keys)}


def grouping_of(select: exp.Select, own: set[str]) -> Grouping | str:
    """How a SELECT with a GROUP BY groups, or why that cannot be split. `own` are the columns of its relations."""
    group = select.args.get("group")
    if group is None:
        return Grouping()
    if group.args.get("all"):
        keys = [unaliased(p) for p in select.expressions if not holds_aggregate(p) and not p.find(exp.Window)]
        return _checked(Grouping(tuple(_distinct(keys))))
    if is_plain_group(group):
        keys = [_meaning(key, select, own) for key in group_keys(select, group)]
        return _checked(Grouping(tuple(_distinct(keys))))
    if group.args.get("totals") or any(isinstance(n, exp.Literal) for n in group.expressions):
        return "it groups in a form that is not split"
    sets = group.copy()
    for leaf in _leaves(sets):
        leaf.replace(_meaning(leaf, select, own).copy())
    calls = {write(n): n for n in own_nodes(select, clauses(select)) if function_name(n) in ("grouping", "grouping_id")}
    return _checked(Grouping(tuple(_distinct(_leaves(sets))), sets, calls))


def _checked(grouping: Grouping) -> Grouping | str:
    bad = next((k for k in grouping.keys if not _is_key(k)), None)
    return grouping if bad is None else f"its key {write(bad)} cannot be computed on the shards alone"


def _distinct(keys: list[exp.Expr]) -> list[exp.Expr]:
    return list({write(k): k for k in keys}.values())


def _leaves(group: exp.Expr) -> list[exp.Expr]:
    """Key expressions of a GROUP BY with grouping sets."""
    found: list[exp.Expr] = []
    stack = [*group.iter_expressions()]
    while stack:
        node = stack.pop()
        if isinstance(node, _SETS):
            stack.extend(node.iter_expressions())
        else:
            found.append(node)
    return found[::-1]


def _replace(node: exp.Expr, places: Mapping[str, int], column: Callable[[int], exp.Expr]) -> None:
    stack = [*node.iter_expressions()]
    while stack:
        inner = stack.pop()
        place = places.get(write(inner))
        if place is not None and not isinstance(inner, _SETS):
            inner.replace(column(place))
        else:
            stack.extend(inner.iter_expressions())


def _meaning(key: exp.Expr, select: exp.Select, own: set[str]) -> exp.Expr:
    """A key that is an alias stands for its expression; a column of that name would come first."""
    if isinstance(key, exp.Column) and not key.table and key.name.lower() not in own:
        for projection in select.expressions:
            if isinstance(projection, exp.Alias) and projection.alias.lower() == key.name.lower():
                return unaliased(projection)
    return key


def _is_key(key: exp.Expr) -> bool:
    if isinstance(key, exp.Literal) or holds_aggregate(key):
        return False
    return not any(isinstance(n, _OPAQUE) or function_name(n) in ("grouping", "grouping_id", "unnest") for n in key.walk())
