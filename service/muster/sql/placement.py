"""Which queries the shards can answer by themselves, each for its own ranks.

A query is *placed* when the rows it gives over the whole job are exactly the rows it gives on each shard, put together. A
table of the job is placed by definition. A SELECT over one placed relation is placed when it works row by row, or when
every group, partition and distinct key holds `_rank`, which one shard owns. `_host` and `_role` may be spread over shards
and never place anything. Placed queries nest: a median over steps per rank, of sums per rank and step, is placed.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from muster.sql.bind import Binder
from muster.sql.scopes import (
    Source,
    aggregates,
    cte_of,
    has_star,
    has_subquery,
    is_column,
    is_plain_source,
    makes_rows,
    output_name,
    sources,
    table_key,
    unaliased,
    windows,
)

OWNER = "_rank"
_SELECT_PARTS = frozenset({"expressions", "from_", "where", "group", "having", "qualify", "distinct", "with_"})
_FINISH = frozenset({"order", "limit", "offset"})


@dataclass(frozen=True, slots=True)
class Placement:
    """A placed query: the table it reads and the output columns that are the owner of the row, in lower case.

    `reduces` says that it groups, windows or makes distinct somewhere, so that running it on the shards pays.
    `depth` counts the SELECTs between it and the table; `per_rank` says that it gives one row for each rank.
    """

    table: str
    owners: frozenset[str]
    reduces: bool = False
    depth: int = 0
    per_rank: bool = False


def place(query: exp.Expr, binder: Binder) -> Placement | None:
    """How a query is placed, or None where the gateway is needed. ORDER BY and LIMIT are never placed."""
    while isinstance(query, exp.Subquery) and not query.alias and is_plain_source(query):
        query = query.this
    if not isinstance(query, exp.Select):
        return None
    return place_select(query, binder)


def place_select(select: exp.Select, binder: Binder, *, finish: bool = False) -> Placement | None:
    """`place` of a SELECT; with `finish`, its ORDER BY, LIMIT and OFFSET are looked away from."""
    used = {key for key, value in select.args.items() if value}
    if not used <= (_SELECT_PARTS | _FINISH if finish else _SELECT_PARTS):
        return None
    found = sources(select)
    if len(found) != 1 or has_subquery(select):
        return None
    base = place_source(found[0], binder)
    if base is None:
        return None
    alias = found[0].alias
    group = select.args.get("group")
    calls, over = aggregates(select), windows(select)
    distinct = select.args.get("distinct")
    reduces = bool(group or calls or over or distinct)
    if (calls or select.args.get("having")) and group is None:
        return None
    if group is not None and not _groups_by_owner(select, group, base, alias):
        return None
    if any(not _partitioned_by_owner(window, base, alias) for window in over):
        return None
    if reduces and makes_rows(select):
        return None
    owners = _owners(select, base, alias)
    if distinct is not None and (distinct.args.get("on") is not None or not owners or group is not None or over):
        return None
    per_rank = (
        group is not None
        and not group.args.get("all")
        and all(_is_owner(k, base, alias) for k in group_keys(select, group))
    )
    return Placement(base.table, owners, base.reduces or reduces, base.depth + 1, per_rank)


def place_source(source: Source, binder: Binder) -> Placement | None:
    """How a relation in FROM is placed."""
    node = source.node
    if not is_plain_source(node):
        return None
    if isinstance(node, exp.Subquery):
        return place(node.this, binder)
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
        if node.db:
            key = table_key(node)
            if key == "cluster.nodes":
                return None
            return Placement(key, frozenset({OWNER}) if binder.owned_by_rank(key) else frozenset())
        cte = cte_of(node)
        if cte is None or _renames(cte) or _recursive(cte):
            return None
        return place(cte.this, binder)
    return None


def _renames(cte: exp.CTE) -> bool:
    alias = cte.args.get("alias")
    return bool(alias is not None and alias.args.get("columns")) or bool(cte.args.get("key_expressions"))


def _recursive(cte: exp.CTE) -> bool:
    return bool(cte.parent is not None and cte.parent.args.get("recursive"))


def _is_owner(node: exp.Expr, base: Placement, alias: str) -> bool:
    return any(is_column(node, name, alias) for name in base.owners)


def _groups_by_owner(select: exp.Select, group: exp.Group, base: Placement, alias: str) -> bool:
    if not is_plain_group(group):
        return False
    if group.args.get("all"):
        return any(_is_owner(unaliased(p), base, alias) for p in select.expressions)
    return any(_is_owner(key, base, alias) for key in group_keys(select, group))


def is_plain_group(group: exp.Group) -> bool:
    """Whether a GROUP BY is a list of keys or ALL."""
    if any(group.args.get(k) for k in ("grouping_sets", "cube", "rollup", "totals")):
        return False
    return not any(isinstance(k, exp.Rollup | exp.Cube | exp.GroupingSets) for k in group.expressions)


def group_keys(select: exp.Select, group: exp.Group) -> list[exp.Expr]:
    """The keys of a plain GROUP BY, with `GROUP BY 1` looked up in the SELECT list."""
    keys = []
    for key in group.expressions:
        if isinstance(key, exp.Literal) and not key.is_string and key.this.isdigit() and not has_star(select):
            place_ = int(key.this) - 1
            keys.append(unaliased(select.expressions[place_]) if place_ < len(select.expressions) else key)
        else:
            keys.append(key)
    return keys


def _partitioned_by_owner(window: exp.Window, base: Placement, alias: str) -> bool:
    return any(_is_owner(key, base, alias) for key in window.args.get("partition_by") or [])


def _changes_columns(star: exp.Expr) -> bool:
    inner = star.this if isinstance(star, exp.Column) else star
    return any(inner.args.get(k) for k in ("except_", "replace", "rename"))


def _owners(select: exp.Select, base: Placement, alias: str) -> frozenset[str]:
    """Output columns that hold the owner as it is. A name that two columns share is none."""
    names: list[str] = []
    owned: set[str] = set()
    for projection in select.expressions:
        inner = unaliased(projection)
        if isinstance(inner, exp.Star) or (isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)):
            if not _changes_columns(inner):
                owned |= base.owners
            names.extend(base.owners)
            continue
        name = output_name(projection)
        if name is not None:
            names.append(name.lower())
            if _is_owner(inner, base, alias):
                owned.add(name.lower())
    return frozenset(n for n in owned if names.count(n) <= 1)
