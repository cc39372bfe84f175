"""Filters sink into the subqueries and CTEs whose rows they filter.

`WITH c AS (SELECT * FROM t) SELECT … FROM c JOIN n … WHERE c.step > 5`: the condition speaks of `c` only, so it may hold
inside of it just as well, from where it can reach the shards. The condition also stays where it was written.
"""

from __future__ import annotations

from sqlglot import exp

from muster.sql.builder import Builder, column
from muster.sql.dialect import write
from muster.sql.placement import group_keys, is_plain_group
from muster.sql.pushdown import alone_conditions, is_plain_call
from muster.sql.scopes import (
    Source,
    aggregates,
    cte_of,
    enclosing_query,
    is_plain_source,
    makes_rows,
    output_name,
    sources,
    unaliased,
    uses,
    windows,
)

_PARTS = frozenset({"expressions", "from_", "joins", "where", "group", "having", "distinct", "with_", "order"})
_OPAQUE = (exp.Query, exp.Exists, exp.Window, exp.Lambda, exp.Comprehension, exp.Columns, exp.Star)


def sink(tree: exp.Query, builder: Builder) -> None:
    """Copy conditions down in place, the outermost SELECT first."""
    for select in list(tree.find_all(exp.Select)):
        where = select.args.get("where")
        if where is None:
            continue
        for source in sources(select):
            inner = _inner(source)
            if inner is not None:
                _sink_into(inner, source, select, builder)


def _inner(source: Source) -> exp.Select | None:
    """The SELECT that a relation in FROM is, where nothing else reads it."""
    node = source.node
    if not is_plain_source(node):
        return None
    query: exp.Expr | None = None
    if isinstance(node, exp.Subquery):
        query = node.this
    elif isinstance(node, exp.Table) and not node.db and isinstance(node.this, exp.Identifier):
        cte = cte_of(node)
        holder = enclosing_query(cte) if cte is not None else None
        if cte is None or holder is None or cte.parent is None or cte.parent.args.get("recursive"):
            return None
        if cte.args["alias"].args.get("columns") or uses(cte, holder) != 1:
            return None
        query = cte.this
    if not isinstance(query, exp.Select) or not {k for k, v in query.args.items() if v} <= _PARTS:
        return None
    distinct, group = query.args.get("distinct"), query.args.get("group")
    if (distinct is not None and distinct.args.get("on") is not None) or windows(query) or makes_rows(query):
        return None
    if group is None:
        return None if aggregates(query) or query.args.get("having") is not None else query
    return query if is_plain_group(group) and not group.args.get("all") else None


def _sink_into(inner: exp.Select, source: Source, select: exp.Select, builder: Builder) -> None:
    names = builder.names_of(source)
    if names is None:
        return
    others = {s.alias: builder.names_of(s) for s in sources(select) if s.node is not source.node}
    group = inner.args.get("group")
    keys = {write(k) for k in group_keys(inner, group)} if group is not None else None
    for condition in alone_conditions(select, source, names, others):
        made = _inside(condition, inner, keys)
        if made is not None:
            inner.where(made, copy=False)


def _inside(condition: exp.Expr, inner: exp.Select, keys: set[str] | None) -> exp.Expr | None:
    """A condition over output columns as one over what they are made of; None where it cannot be said there."""
    holder = exp.Paren(this=condition.copy())
    for node in list(holder.find_all(exp.Column)):
        value = _meaning(node.name.lower(), inner)
        if value is None or any(isinstance(n, _OPAQUE) or not is_plain_call(n) for n in value.walk()):
            return None
        if keys is not None and write(value) not in keys:
            return None
        node.replace(value.copy() if isinstance(value, exp.Column) else exp.Paren(this=value.copy()))
    return holder


def _meaning(name: str, inner: exp.Select) -> exp.Expr | None:
    found: list[exp.Expr] = []
    for projection in inner.expressions:
        bare = unaliased(projection)
        if isinstance(bare, exp.Star) or (isinstance(bare, exp.Column) and isinstance(bare.this, exp.Star)):
            star = bare if isinstance(bare, exp.Star) else bare.this
            if len(sources(inner)) != 1 or any(star.args.get(k) for k in ("except_", "replace", "rename")):
                return None
            found.append(column(name))
        elif (output_name(projection) or "").lower() == name:
            found.append(bare)
        elif output_name(projection) is None:
            return None  # the engine makes up a name, which might be this one
    return found[0] if len(found) == 1 else None
