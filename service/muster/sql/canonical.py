"""One way to name things, so that later rules need to know only one.

Afterwards every table of the job is `schema.table AS alias` without catalogue, and columns are qualified by aliases only:
`global.python.t.x` and `python.t.x` become `t.x`. `EXISTS (SELECT * …)` becomes `EXISTS (SELECT 1 …)`: no column is needed.
"""

from __future__ import annotations

from collections import Counter

from sqlglot import exp

from muster.errors import NotDistributable
from muster.sql.scopes import aggregates, clauses, fed_tables, own_nodes, sources


def canonical(tree: exp.Expr) -> None:
    """Rename in place. Raises NotDistributable where two tables of one FROM have the same name and no alias."""
    named = {(t.db.lower(), t.name.lower()) for t in fed_tables(tree)}
    for column in list(tree.find_all(exp.Column)):
        _strip(column, named)
    for table in list(fed_tables(tree)):
        table.set("catalog", None)
        if not table.args.get("alias"):
            table.set("alias", exp.TableAlias(this=table.this.copy()))
    for exists in tree.find_all(exp.Exists):
        _ask_for_rows_only(exists)
    for call in list(tree.find_all(exp.WithinGroup)):
        _plain_quantile(call)
    for select in tree.find_all(exp.Select):
        _hoist_joins(select)
        _spell_out_windows(select)
        for alias, count in Counter(s.alias for s in sources(select) if s.alias).items():
            if count > 1:
                raise NotDistributable(
                    f"Two relations of one FROM are called {alias}.", hint="Give each an alias: FROM … AS a, … AS b."
                )


_QUANTILES = {"percentile_cont": "quantile_cont", "percentile_disc": "quantile_disc"}


def _plain_quantile(call: exp.WithinGroup) -> None:
    """`percentile_cont(0.5) WITHIN GROUP (ORDER BY x)` is `quantile_cont(x, 0.5)`; a descending order is left alone."""
    inner, order = call.this, call.expression
    if not isinstance(inner, exp.Anonymous) or inner.name.lower() not in _QUANTILES or len(inner.expressions) != 1:
        return
    keys = order.expressions if isinstance(order, exp.Order) else []
    if len(keys) == 1 and not keys[0].args.get("desc"):
        name = _QUANTILES[inner.name.lower()]
        call.replace(exp.Anonymous(this=name, expressions=[keys[0].this, inner.expressions[0]]))


def _spell_out_windows(select: exp.Select) -> None:
    """`OVER w … WINDOW w AS (…)` is `OVER (…)`, where the OVER says nothing more."""
    named = {w.this.name.lower(): w for w in select.args.get("windows") or [] if isinstance(w.this, exp.Identifier)}
    if not named:
        return
    plain = ("partition_by", "order", "spec")
    for window in [n for n in own_nodes(select, clauses(select)) if isinstance(n, exp.Window)]:
        meant = named.get(window.args["alias"].name.lower()) if window.args.get("alias") is not None else None
        if meant is None or meant.args.get("alias") is not None or any(window.args.get(k) for k in plain):
            continue
        window.set("alias", None)
        for part in plain:
            value = meant.args.get(part)
            copy = [v.copy() for v in value] if isinstance(value, list) else value.copy() if value is not None else None
            window.set(part, copy)
        window.set("over", "OVER")
    left = [n for n in own_nodes(select, clauses(select)) if isinstance(n, exp.Window) and n.args.get("alias") is not None]
    if not left:
        select.set("windows", None)


_ROWS_ONLY = frozenset({"expressions", "from_", "joins", "where", "with_"})


def _ask_for_rows_only(exists: exp.Exists) -> None:
    query = exists.this.this if isinstance(exists.this, exp.Subquery) else exists.this
    if isinstance(query, exp.Select) and {k for k, v in query.args.items() if v} <= _ROWS_ONLY and not aggregates(query):
        query.set("expressions", [exp.Literal.number(1)])


def _hoist_joins(select: exp.Select) -> None:
    """`FROM (SELECT …) AS a JOIN b`: sqlglot hangs the join on the subquery, where it belongs to the SELECT."""
    start = select.args.get("from_")
    if start is not None and isinstance(start.this, exp.Subquery) and start.this.args.get("joins"):
        joins = start.this.args["joins"]
        start.this.set("joins", None)
        select.set("joins", [*joins, *(select.args.get("joins") or [])])


def _strip(column: exp.Column, named: set[tuple[str, str]]) -> None:
    """Take catalogue and schema off a column; what follows the column's own name is a field of it."""
    parts: list[exp.Expr] = [p for p in (column.args.get(k) for k in ("catalog", "db", "table", "this")) if p is not None]
    names = [p.name.lower() for p in parts]
    skip = 1 if names[0] == "global" and tuple(names[1:3]) in named else 0
    if len(parts) < skip + 3 or tuple(names[skip : skip + 2]) not in named:
        return
    rest = parts[skip + 1 :]
    renamed: exp.Expr = exp.Column(this=rest[1], table=rest[0])
    for field in rest[2:]:
        renamed = exp.Dot(this=renamed, expression=field)
    column.replace(renamed)
