"""Values that a first round trip computes, so that a second one can filter by them on the shards.

`WHERE global_step > (SELECT max(global_step) - 200 FROM …)`: the subquery reads the whole job, so no shard can evaluate it.
It is computed first and its value put into the second wave as a typed literal. Only a subquery that gives exactly one row
qualifies: ungrouped aggregates without HAVING, LIMIT or OFFSET. Of others the engine itself must say what no row means.

A one-row relation that is cross-joined, as in `WITH bounds AS (SELECT max(…) AS hi …) SELECT … FROM t, bounds`, is first
turned into such subqueries: every `bounds.hi` is `(SELECT hi FROM bounds)`, and `bounds` leaves the FROM.

It costs a round trip, so it is done only where it lets rows of a table be filtered or grouped on the shards.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from muster.errors import SqlBind
from muster.sql.builder import Builder, identifier, standalone
from muster.sql.placement import place_source
from muster.sql.scopes import (
    Source,
    aggregates,
    clauses,
    cte_of,
    has_star,
    is_plain_source,
    makes_rows,
    own_nodes,
    sources,
    table_key,
    windows,
)
from muster.sql.types import can_be_literal, is_python_exact

MAX_WAVES = 4
Finish = Callable[[exp.Query, Builder], exp.Query]


def extract(tree: exp.Query, builder: Builder, distribute: Finish, depth: int = 1) -> None:
    """Replace subqueries that qualify by `$id` in place, and plan each of them with `distribute`."""
    if depth >= MAX_WAVES:
        return
    for select in list(tree.find_all(exp.Select)):
        _inline_bounds(select, builder)
    for select in list(tree.find_all(exp.Select)):
        if not _gains(select, builder):
            continue
        for node in [n for n in own_nodes(select, clauses(select)) if isinstance(n, exp.Subquery)]:
            if node.parent is not None and _is_value(node) and _one_row(node.this):
                _extract(node, builder, distribute, depth)


def _extract(node: exp.Subquery, builder: Builder, distribute: Finish, depth: int) -> None:
    query = standalone(node.this)
    try:
        columns = builder.describe(query)
    except SqlBind:
        return  # correlated
    if len(columns) != 1 or not can_be_literal(columns[0].type):
        return
    holder = exp.Subquery(this=query)
    extract(query, builder, distribute, depth + 1)
    merge = distribute(holder.this, builder)
    if not is_python_exact(columns[0].type):
        merge = exp.select(exp.Cast(this=_only_column(), to=exp.DataType.build("TEXT"))).from_(
            exp.Subquery(this=merge, alias=exp.TableAlias(this=identifier("q"), columns=[identifier("v")]))
        )
    scalar = builder.scalar(merge, columns[0].type)
    node.replace(exp.Placeholder(this=scalar.id))


def _only_column() -> exp.Column:
    return exp.Column(this=identifier("v"))


def _gains(select: exp.Select, builder: Builder) -> bool:
    """Whether the SELECT reads a table's own rows, so that filtering or grouping them on the shards saves something."""
    for source in sources(select):
        if isinstance(source.node, exp.Table) and source.node.db:
            return not builder.binder.is_gateways(table_key(source.node))
        base = place_source(source, builder.binder)
        if base is not None and not base.reduces:
            return True
    return False


def _is_value(node: exp.Subquery) -> bool:
    """Whether a subquery stands for a value, not for a set of rows."""
    parent = node.parent
    if isinstance(parent, exp.In) and parent.this is not node:
        return False
    return not isinstance(
        parent, exp.Exists | exp.Any | exp.All | exp.From | exp.Join | exp.Lateral | exp.SetOperation | exp.CTE
    )


def _one_row(query: exp.Expr | None) -> bool:
    """Whether a query gives exactly one row on any data."""
    if isinstance(query, exp.Subquery) and not query.args.get("joins"):
        return _one_row(query.this)
    if not isinstance(query, exp.Select):
        return False
    if any(query.args.get(k) for k in ("group", "having", "qualify", "limit", "offset", "distinct", "laterals")):
        return False
    if windows(query) or has_star(query) or makes_rows(query):
        return False
    if aggregates(query):
        return True
    found = sources(query)
    if not found:
        return not query.args.get("where") and not query.find(exp.Anonymous)
    return not query.args.get("where") and all(_one_row_source(s) and _is_cross(s) for s in found)


def _one_row_source(source: Source) -> bool:
    node = source.node
    if not is_plain_source(node):
        return False
    if isinstance(node, exp.Subquery):
        return _one_row(node.this)
    if isinstance(node, exp.Table) and not node.db:
        cte = cte_of(node)
        alias = cte.args.get("alias") if cte is not None else None
        renamed = alias is not None and bool(alias.args.get("columns"))
        if cte is None or cte.parent is None or renamed or cte.parent.args.get("recursive"):
            return False
        return _one_row(cte.this)
    return False


def _is_cross(source: Source) -> bool:
    join = source.join
    if join is None:
        return True
    plain = not any(join.args.get(k) for k in ("on", "using", "side", "method"))
    return plain and str(join.args.get("kind") or "").upper() in ("", "CROSS")


def _inline_bounds(select: exp.Select, builder: Builder) -> None:
    """Turn cross-joined one-row relations of a FROM into subqueries, where one other relation is left."""
    found = sources(select)
    if len(found) < 2 or has_star(select) or select.args.get("laterals"):
        return
    bounds = [s for s in found if _one_row_source(s) and _is_cross(s)]
    rest = [s for s in found if s not in bounds]
    if not bounds or len(rest) != 1 or not _is_cross(rest[0]) or not is_plain_source(rest[0].node):
        return
    base = place_source(rest[0], builder.binder)
    if base is None or base.reduces:
        return
    names = {s.alias: builder.names_of(s) for s in bounds}
    own = builder.names_of(rest[0])
    if own is None or any(n is None for n in names.values()):
        return
    found_columns = _columns_of(select, names, own, builder)
    if found_columns is None:
        return
    group = select.args.get("group")
    if group is not None:
        kept = [k for k in group.expressions if id(k) not in {id(c) for c, _ in found_columns}]
        if not kept or group.args.get("all"):
            return
        group.set("expressions", kept)
        found_columns = [(c, s) for c, s in found_columns if c.find_ancestor(exp.Group) is None]
    by_alias = {s.alias: s for s in bounds}
    for column, alias in found_columns:
        inner = exp.select(exp.Column(this=column.this.copy())).from_(by_alias[alias].node.copy())
        made: exp.Expr = exp.Subquery(this=inner)
        if column.parent is select and column.arg_key == "expressions":
            made = exp.Alias(this=made, alias=column.this.copy())
        column.replace(made)
    select.set("from_", exp.From(this=rest[0].node))
    select.set("joins", None)


def _columns_of(
    select: exp.Select, names: dict[str, set[str] | None], own: set[str], builder: Builder
) -> list[tuple[exp.Column, str]] | None:
    """The columns of the one-row relations in a SELECT, with the relation of each; None where it is not certain."""
    result = []
    for node in own_nodes(select, clauses(select)):
        correlated = isinstance(node, exp.Subquery) and not builder.stands_alone(node.this)
        if correlated and any(_may_mean(c, names) for c in node.find_all(exp.Column)):
            return None
    for node in own_nodes(select, clauses(select)):
        if not isinstance(node, exp.Column):
            continue
        name = node.name.lower()
        if node.table:
            if node.table.lower() in names:
                if name not in (names[node.table.lower()] or ()):
                    return None
                result.append((node, node.table.lower()))
            continue
        holders = [alias for alias, columns in names.items() if columns and name in columns]
        if holders and (name in own or len(holders) > 1):
            return None
        if holders:
            result.append((node, holders[0]))
        elif name in names:
            return None  # the whole row as a value
    return result


def _may_mean(column: exp.Column, names: dict[str, set[str] | None]) -> bool:
    if column.table:
        return column.table.lower() in names
    return any(column.name.lower() in (columns or ()) for columns in names.values())
