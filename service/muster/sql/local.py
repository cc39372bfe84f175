"""Routes `local` and `topk`: a placed query runs on the shards, the gateway puts the answers together.

ORDER BY, LIMIT and OFFSET of the query are done at the gateway, over the rows of all ranks. With a LIMIT of k the shards
also order and send no more than k + offset rows each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from muster.errors import SqlBind
from muster.model import ColumnType
from muster.sql.builder import Builder, column, identifier, relation, standalone
from muster.sql.functions import words
from muster.sql.placement import Placement, place_select
from muster.sql.plan import Fragment, Route
from muster.sql.scopes import (
    conjuncts,
    function_name,
    has_star,
    output_name,
    own_nodes,
    sources,
    unaliased,
)
from muster.sql.types import round_trips

MAX_TOP = 10_000


@dataclass(frozen=True, slots=True)
class _Finish:
    """What the gateway still does: order keys as columns of the fragment, and the limits as they were written."""

    hidden: tuple[exp.Expr, ...]  # order keys that are no output columns
    keys: tuple[int | None, ...]  # for each order key its output column; None for the next hidden one
    top: int | None  # rows that each shard needs to send


def push_local(select: exp.Select, builder: Builder) -> str | None:
    """Replace a SELECT by a fragment in place, if it is placed and that pays. Returns why it did not, or None."""
    placement = place_select(select, builder.binder, finish=True)
    if isinstance(placement, str):
        return placement
    finish = _finish(select)
    if finish is None:
        return "its ORDER BY or LIMIT cannot be done on the columns that it puts out"
    if not _pays(placement, finish):
        return "it asks for rows as they are" if placement.depth < 2 else "it joins rows to more rows"
    if finish.top is not None and not all(_never_fails(p) for p in [*select.expressions, *finish.hidden]):
        return "a column could fail on a row that LIMIT leaves out"
    core = standalone(select)
    for part in ("order", "limit", "offset"):
        core.set(part, None)
    try:
        names = builder.describe(core)
        if finish.hidden:
            if select.args.get("distinct") or has_star(select):
                return "its ORDER BY is not among its columns"
            core.set("expressions", [*core.expressions, *[h.copy() for h in finish.hidden]])
        columns = builder.describe(core) if finish.hidden else names
    except SqlBind:
        return "it is correlated with the query around it"
    stuck = [c for c in columns if not round_trips(c.type)]
    if stuck:
        return f"a column of type {stuck[0].type} cannot travel"
    if len(names) + len(finish.hidden) != len(columns):
        return "its columns cannot be told apart"
    fragment = _fragment(select, core, columns, placement, finish, builder)
    _replace(select, fragment, names, finish)
    return None


def _pays(placement: Placement, finish: _Finish) -> bool:
    return placement.reduces or finish.top is not None or (placement.depth > 1 and not placement.multiplies)


def _fragment(
    select: exp.Select,
    core: exp.Query,
    columns: tuple[ColumnType, ...],
    placement: Placement,
    finish: _Finish,
    builder: Builder,
) -> Fragment:
    types = [ColumnType(f"c{i}", c.type) for i, c in enumerate(columns)]
    ordered = core
    order = select.args.get("order")
    if finish.top is not None:
        if order is not None:
            ordered.set("order", order.copy())
        ordered = ordered.limit(finish.top, copy=False)
    query = _numbered(ordered, types)
    where = select.args.get("where") if _reads_tables(select) else None
    conditions = conjuncts(where.this if where is not None else None)
    return builder.fragment(
        placement.tables,
        query,
        types,
        Route.TOPK if finish.top is not None else Route.LOCAL,
        tagged=conditions,
        pushed_filter=conditions,
        pushed_columns=tuple(n for n in (output_name(p) for p in select.expressions) if n),
    )


def _numbered(core: exp.Query, types: list[ColumnType]) -> exp.Select:
    """`SELECT c0, c1 FROM (core) AS q(c0, c1)`: names of one's own, whatever the statement calls its columns."""
    alias = exp.TableAlias(this=identifier("q"), columns=[identifier(t.name) for t in types])
    return exp.select(*[column(t.name) for t in types]).from_(exp.Subquery(this=core, alias=alias))


def _reads_tables(select: exp.Select) -> bool:
    """Whether FROM names tables of the job only, so that `_rank` in WHERE is the tag."""
    return all(isinstance(s.node, exp.Table) and s.node.db for s in sources(select))


def _replace(select: exp.Select, fragment: Fragment, names: tuple[ColumnType, ...], finish: _Finish) -> None:
    made = exp.select(*[exp.Alias(this=column(f"c{i}"), alias=identifier(c.name)) for i, c in enumerate(names)]).from_(
        relation(fragment, "q")
    )
    order = select.args.get("order")
    if order is not None:
        copy = order.copy()
        hidden = iter(range(len(names), len(names) + len(finish.hidden)))
        for key, place in zip(copy.expressions, finish.keys, strict=True):
            if place != -1:
                key.set("this", column(f"c{next(hidden) if place is None else place}", "q"))
        made.set("order", copy)
    for part in ("limit", "offset"):
        if select.args.get(part) is not None:
            made.set(part, select.args[part].copy())
    select.replace(made)


_TOTAL = (
    exp.Column, exp.Identifier, exp.Alias, exp.Star, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Case, exp.If,
    exp.Not, exp.And, exp.Or, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is, exp.Between, exp.In,
    exp.DPipe, exp.Window, exp.Order, exp.Ordered, exp.Filter, exp.Where, exp.WindowSpec,
)  # fmt: skip
_TOTAL_CALLS = words(
    """coalesce ifnull nullif upper lower length concat greatest least count min max avg median any_value first last
    bool_and bool_or row_number rank dense_rank lag lead first_value last_value sum"""
)


def _never_fails(projection: exp.Expr) -> bool:
    """Whether an output column can be computed for any row.

    With a LIMIT the shards compute rows that one DuckDB might never have looked at; a division by zero or a bad cast in
    one of them must not fail the statement. A sum overflows only where its group is in one DuckDB, too.
    """
    return all(
        isinstance(n, _TOTAL) or function_name(n) in _TOTAL_CALLS or _is_typed_literal(n) for n in _computed(projection)
    )


def _computed(node: exp.Expr) -> Iterator[exp.Expr]:
    yield node
    if not _is_typed_literal(node):
        for child in node.iter_expressions():
            yield from _computed(child)


def _is_typed_literal(node: exp.Expr) -> bool:
    return isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal | exp.Null)


def _finish(select: exp.Select) -> _Finish | None:
    """How ORDER BY, LIMIT and OFFSET can be done on the fragment's columns, or None where they cannot."""
    limit, offset, order = (select.args.get(k) for k in ("limit", "offset", "order"))
    top = None
    if limit is not None:
        rows, skip = _literal(limit), _literal(offset) if offset is not None else 0
        if rows is not None and skip is not None and rows + skip <= MAX_TOP:
            top = rows + skip
        elif rows is None and not isinstance(limit, exp.Limit):
            return None
    hidden: list[exp.Expr] = []
    keys: list[int | None] = []
    for ordered in order.expressions if order is not None else []:
        key = ordered.this
        if isinstance(key, exp.Var):  # ORDER BY ALL
            keys.append(-1)
            continue
        place = _output(select, key)
        if place is None:
            if not _hideable(select, key):
                return None
            hidden.append(key)
        keys.append(place)
    return _Finish(tuple(hidden), tuple(keys), top)


def _output(select: exp.Select, key: exp.Expr) -> int | None:
    """The output column that an order key is: by number, by name, or as the same expression."""
    if has_star(select):
        return None
    if isinstance(key, exp.Literal) and not key.is_string and key.this.isdigit():
        place = int(key.this) - 1
        return place if 0 <= place < len(select.expressions) else None
    if isinstance(key, exp.Column) and not key.table:
        named = [i for i, p in enumerate(select.expressions) if (output_name(p) or "").lower() == key.name.lower()]
        if named:
            return named[0] if len(named) == 1 else None
    same = [i for i, p in enumerate(select.expressions) if unaliased(p) == key]
    return same[0] if same else None


def _hideable(select: exp.Select, key: exp.Expr) -> bool:
    """Whether an order key can be one more column: no literal, and no name that is an alias of something else."""
    if isinstance(key, exp.Literal) or select.args.get("distinct") or select.args.get("group"):
        return False
    aliases = {p.alias.lower() for p in select.expressions if isinstance(p, exp.Alias)}
    return not any(
        isinstance(n, exp.Query | exp.Window) or (isinstance(n, exp.Column) and n.name.lower() in aliases)
        for n in own_nodes(select, [key])
    )


def _literal(node: exp.Expr) -> int | None:
    value = node.args.get("expression") or node.args.get("count")
    if node.args.get("limit_options") and (
        node.args["limit_options"].args.get("percent") or node.args["limit_options"].args.get("with_ties")
    ):
        return None
    if isinstance(value, exp.Cast) and isinstance(value.this, exp.Literal):
        value = value.this
    if isinstance(value, exp.Literal) and value.this.isdigit():
        return int(value.this)
    return None
