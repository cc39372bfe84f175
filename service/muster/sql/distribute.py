"""Choosing the route of every part of a statement, from the outside in.

A query is tried as a whole first: local or top-k when it is placed, partial when its aggregates can be split. What does
not fit is descended into; tables that are left over are gathered. A WITH clause comes after the body that uses it, so that
a CTE which the body took with it to the shards is dropped, not fetched for nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from muster.sql.builder import Builder
from muster.sql.gather import WHY_NOT, gather_all
from muster.sql.local import push_local
from muster.sql.narrow import narrow
from muster.sql.partial import push_partial
from muster.sql.placement import place
from muster.sql.scopes import aggregates, nested_queries, uses
from muster.sql.sink import sink

Rule = Callable[[exp.Select, Builder], str | None]
_PLAIN = frozenset({"expressions", "from_", "joins", "where", "with_"})
RULES: tuple[Rule, ...] = (push_local, push_partial)
"""In the order in which they are tried. Each replaces the SELECT in place and returns None, or leaves it alone and says
why."""


def distribute(tree: exp.Query, builder: Builder, rules: tuple[Rule, ...] = RULES) -> exp.Query:
    """Replace what the shards can do by fragments. Gives the tree for the gateway (the given one is changed)."""
    holder = exp.Subquery(this=tree)
    if rules:
        narrow(tree, builder)
        sink(tree, builder)
    _descend(tree, builder, rules)
    body: exp.Query = holder.this
    gather_all(body, builder)
    body.pop()
    return body


def _descend(query: exp.Expr, builder: Builder, rules: tuple[Rule, ...]) -> None:
    if push_local in rules:
        _fetch_once(query, builder)
    if isinstance(query, exp.Select):
        why_not = []
        for rule in rules:
            reason = rule(query, builder)
            if reason is None:
                return
            why_not.append(reason)
        if why_not:
            grouped = query.args.get("group") or query.args.get("distinct") or aggregates(query)
            query.meta[WHY_NOT] = why_not[-1 if grouped else 0]
    for inner in list(nested_queries(query)):
        holder = inner.parent if isinstance(inner.parent, exp.Subquery) else inner
        if isinstance(holder.parent, exp.In) and holder.arg_key == "query" and push_partial in rules:
            _each_value_once(inner, builder)
        _descend(inner, builder, rules)
    with_ = query.args.get("with_")
    if with_ is not None:
        for cte in reversed(list(with_.expressions)):
            if not uses(cte, query):
                cte.pop()
            else:
                _descend(cte.this, builder, rules)
        if not with_.expressions:
            query.set("with_", None)


def _each_value_once(query: exp.Query, builder: Builder) -> None:
    """`x IN (SELECT y …)` asks only which values there are."""
    plain = isinstance(query, exp.Select) and {k for k, v in query.args.items() if v} <= _PLAIN
    if plain and len(query.expressions) == 1 and builder.stands_alone(query):
        query.set("distinct", exp.Distinct())


def _fetch_once(query: exp.Expr, builder: Builder) -> None:
    """CTEs of one row per rank that are used several times: fetched once, and all of their uses are the gateway's."""
    with_ = query.args.get("with_")
    for cte in list(with_.expressions) if with_ is not None else []:
        if isinstance(cte.this, exp.Select) and uses(cte, query) > 1:
            placement = place(cte.this, builder.binder)
            if placement is not None and placement.per_rank:
                push_local(cte.this, builder)
