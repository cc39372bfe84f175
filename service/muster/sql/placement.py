"""Which queries the shards can answer by themselves, each for its own ranks.

A query is *placed* when the rows it gives over the whole job are exactly the rows it gives on each shard, put together. A
table of the job is placed by definition. A SELECT over placed relations is placed when it works row by row, or when every
join, group, partition and distinct key holds `_rank`, which one shard owns. `_host` and `_role` may be spread over shards
and never place anything. Placed queries nest: a median over steps per rank, of sums per rank and step, is placed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from muster.sql.bind import Binder
from muster.sql.scopes import (
    Source,
    aggregates,
    conjuncts,
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
from muster.tables import PROCESS_RANK

OWNER = "_rank"
_SELECT_PARTS = frozenset({"expressions", "from_", "joins", "where", "group", "having", "qualify", "distinct", "with_"})
_FINISH = frozenset({"order", "limit", "offset"})


@dataclass(frozen=True, slots=True)
class Placement:
    """A placed query: the tables it reads and the output columns that are the owner of the row, in lower case.

    `reduces` says that it groups, windows or makes distinct somewhere, so that running it on the shards pays.
    `depth` counts the SELECTs between it and the tables, a join as one; `per_rank` says that it gives one row for each
    rank, `multiplies` that a join may have given more rows than it was given.
    """

    tables: tuple[str, ...]
    owners: frozenset[str]
    reduces: bool = False
    depth: int = 0
    per_rank: bool = False
    multiplies: bool = False


@dataclass(frozen=True, slots=True)
class PlacedFrom:
    """A placed FROM: for each relation the columns that own its rows; `merged` are owners named in USING.

    `multiplies` says that a join may give more rows than it was given.
    """

    tables: tuple[str, ...]
    owners: Mapping[str, frozenset[str]]
    merged: frozenset[str]
    reduces: bool
    depth: int
    multiplies: bool

    @property
    def joined(self) -> bool:
        return len(self.owners) > 1

    def is_owner(self, node: exp.Expr) -> bool:
        """Whether an expression is, as it is, a column that owns the row."""
        if not isinstance(node, exp.Column) or node.args.get("db"):
            return False
        name = node.name.lower()
        if node.table:
            return name in self.owners.get(node.table.lower(), ())
        return name in self.merged if self.joined else any(name in names for names in self.owners.values())


def place(query: exp.Expr, binder: Binder) -> Placement | None:
    """How a query is placed, or None where the gateway is needed. ORDER BY and LIMIT are never placed."""
    while isinstance(query, exp.Subquery) and not query.alias and is_plain_source(query):
        query = query.this
    if not isinstance(query, exp.Select):
        return None
    found = place_select(query, binder)
    return found if isinstance(found, Placement) else None


def place_select(select: exp.Select, binder: Binder, *, finish: bool = False) -> Placement | str:
    """`place` of a SELECT, or why it is not placed; with `finish`, its ORDER BY, LIMIT and OFFSET are looked away from."""
    used = {key for key, value in select.args.items() if value}
    if not used <= (_SELECT_PARTS | _FINISH if finish else _SELECT_PARTS):
        return "it has clauses that need the rows of all ranks together"
    base = place_from(select, binder)
    if isinstance(base, str):
        return base
    group = select.args.get("group")
    calls, over = aggregates(select), windows(select)
    distinct = select.args.get("distinct")
    reduces = bool(group or calls or over or distinct)
    if (calls or select.args.get("having")) and group is None:
        return "its aggregates are over the rows of all ranks"
    if group is not None and not _groups_by_owner(select, group, base):
        return f"its groups hold rows of several ranks (no key is {OWNER})"
    if any(not _partitioned_by_owner(window, base) for window in over):
        return f"a window looks at rows of several ranks (it is not partitioned by {OWNER})"
    if reduces and makes_rows(select):
        return "it makes rows in its SELECT list"
    owners = _owners(select, base)
    if distinct is not None and (distinct.args.get("on") is not None or not owners or group is not None or over):
        return f"DISTINCT compares rows of several ranks ({OWNER} is not put out)"
    per_rank = group is not None and not group.args.get("all") and all(base.is_owner(k) for k in group_keys(select, group))
    multiplies = base.multiplies and not (group or distinct)
    reduces = bool(group or distinct) or ((reduces or base.reduces) and not multiplies)
    return Placement(base.tables, owners, reduces, base.depth + 1 + base.joined, per_rank, multiplies)


def place_from(select: exp.Select, binder: Binder) -> PlacedFrom | str:
    """How the FROM of a SELECT with its joins is placed, or why it is not."""
    found = sources(select)
    if not found:
        return "it reads no table of the job"
    if has_subquery(select):
        return "it holds a subquery that looks at all ranks"
    placed: dict[str, Placement] = {}
    for source in found:
        one = place_source(source, binder)
        if one is None:
            return f"{source.alias or 'a part of FROM'} holds rows of several ranks"
        if source.alias in placed:
            return f"two relations are called {source.alias}"
        placed[source.alias] = one
    tables = tuple(dict.fromkeys(t for p in placed.values() for t in p.tables))
    reduces, depth = any(p.reduces for p in placed.values()), max(p.depth for p in placed.values())
    if len(found) == 1:
        owners = {alias: p.owners for alias, p in placed.items()}
        multiplies = any(p.multiplies for p in placed.values())
        return PlacedFrom(tables, owners, frozenset(), reduces, depth, multiplies)
    return _place_joins(select, found, placed, PlacedFrom(tables, {}, frozenset(), reduces, depth, True))


def _place_joins(
    select: exp.Select, found: list[Source], placed: Mapping[str, Placement], base: PlacedFrom
) -> PlacedFrom | str:
    """Joins are placed when each new relation is tied to the others by its owner: rows of two ranks never meet."""
    where = select.args.get("where")
    above = conjuncts(where.this if where is not None else None)
    kept: set[str] = {found[0].alias}
    seen: set[str] = {found[0].alias}
    merged: set[str] = set()
    many = 1 + sum(p.multiplies for p in placed.values()) - placed[found[0].alias].per_rank
    for source in found[1:]:
        join = source.join
        if join is None or join.args.get("method"):
            return "a part of FROM is joined in a way that needs the rows of all ranks"
        side, kind = str(join.args.get("side") or "").upper(), str(join.args.get("kind") or "").upper()
        if kind not in ("", "INNER", "CROSS", "OUTER", "SEMI", "ANTI"):
            return f"a {kind} JOIN needs the rows of all ranks"
        inner = not side and kind in ("", "INNER", "CROSS")
        using = [i.name.lower() for i in join.args.get("using") or []]
        own = placed[source.alias].owners
        shared = {n for n in using if n in own and all(n in placed[a].owners for a in seen)}
        conditions = conjuncts(join.args.get("on")) + (above if inner else [])
        ties = [c for c in conditions if _ties(c, source.alias, seen, placed)]
        if not shared and not ties:
            return f"a join does not hold {OWNER} of both sides, so rows of several ranks may meet"
        keys = len(using) - len(shared) + sum(_is_key(c, source.alias) for c in conditions if c not in ties)
        if not placed[source.alias].per_rank and kind not in ("SEMI", "ANTI"):
            many += 0 if keys else 1
        seen.add(source.alias)
        if side in ("RIGHT", "FULL"):
            kept.clear()
        if side in ("", "RIGHT") and kind not in ("SEMI", "ANTI"):
            kept.add(source.alias)
        merged = (merged | shared) if side in ("", "LEFT") else set()
    owners = {a: placed[a].owners if a in kept else frozenset[str]() for a in seen}
    return PlacedFrom(base.tables, owners, frozenset(merged), base.reduces, base.depth, many > 1)


def _ties(condition: exp.Expr, alias: str, seen: set[str], placed: Mapping[str, Placement]) -> bool:
    """Whether a condition is `alias.owner = earlier.owner`."""
    if not isinstance(condition, exp.EQ):
        return False
    sides = [condition.this, condition.expression]
    for mine, other in (sides, sides[::-1]):
        if any(is_column(mine, n, alias) and isinstance(mine, exp.Column) and mine.table for n in placed[alias].owners):
            for earlier in seen:
                if any(is_column(other, n, earlier) and other.args.get("table") for n in placed[earlier].owners):
                    return True
    return False


def _is_key(condition: exp.Expr, alias: str) -> bool:
    """Whether a condition compares a column of a relation with one of another."""
    sides = (condition.this, condition.expression) if isinstance(condition, exp.EQ) else ()
    tables = [s.table.lower() for s in sides if isinstance(s, exp.Column) and s.table]
    return len(tables) == 2 and alias in tables and tables[0] != tables[1]


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
            if binder.is_gateways(key):
                return None
            owners = frozenset({OWNER}) if binder.owned_by_rank(key) else frozenset[str]()
            return Placement((key,), owners, per_rank=key == PROCESS_RANK.full_name)
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


def _groups_by_owner(select: exp.Select, group: exp.Group, base: PlacedFrom) -> bool:
    if not is_plain_group(group):
        return False
    if group.args.get("all"):
        return any(base.is_owner(unaliased(p)) for p in select.expressions)
    return any(base.is_owner(key) for key in group_keys(select, group))


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


def _partitioned_by_owner(window: exp.Window, base: PlacedFrom) -> bool:
    return any(base.is_owner(key) for key in window.args.get("partition_by") or [])


def _changes_columns(star: exp.Expr) -> bool:
    inner = star.this if isinstance(star, exp.Column) else star
    return any(inner.args.get(k) for k in ("except_", "replace", "rename"))


def _owners(select: exp.Select, base: PlacedFrom) -> frozenset[str]:
    """Output columns that hold the owner as it is. A name that two columns share is none."""
    names: list[str] = []
    owned: set[str] = set()
    for projection in select.expressions:
        inner = unaliased(projection)
        if isinstance(inner, exp.Star) or (isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)):
            if base.joined:
                return frozenset()
            all_owners = {n for found in base.owners.values() for n in found}
            if not _changes_columns(inner):
                owned |= all_owners
            names.extend(all_owners)
            continue
        name = output_name(projection)
        if name is not None:
            names.append(name.lower())
            if base.is_owner(inner):
                owned.add(name.lower())
    return frozenset(n for n in owned if names.count(n) <= 1)
