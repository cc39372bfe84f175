"""A star in a subquery or CTE becomes the columns that somebody reads.

`WITH c AS (SELECT * FROM t) SELECT c.op FROM c` needs one column of `t`. The names pass through the star unchanged, so the
columns that can be needed are those that the statement names anywhere.
"""

from __future__ import annotations

from sqlglot import exp

from muster.sql.builder import Builder, column
from muster.sql.scopes import cte_of, enclosing_select, has_star, is_plain_source, sources

_PARTS = frozenset({"expressions", "from_", "where", "order", "with_"})


def narrow(tree: exp.Query, builder: Builder) -> None:
    """Replace stars in place, the outermost first, so that one behind another is seen without it."""
    named = {i.name.lower() for i in tree.find_all(exp.Identifier)}
    for select in list(tree.find_all(exp.Select)):
        if not _is_bare(select):
            continue
        readers = _readers(select, tree)
        if not readers or any(_needs_all(reader, alias) for reader, alias in readers):
            continue
        names = builder.names_of(sources(select)[0])
        kept = sorted(n for n in names or () if n in named)
        if names and kept and len(kept) < len(names):
            select.set("expressions", [column(n) for n in kept])


def _is_bare(select: exp.Select) -> bool:
    """`SELECT * FROM one_relation WHERE … ORDER BY …`."""
    if not {k for k, v in select.args.items() if v} <= _PARTS or len(sources(select)) != 1:
        return False
    star = select.expressions[0] if len(select.expressions) == 1 else None
    return isinstance(star, exp.Star) and not any(star.args.values()) and is_plain_source(sources(select)[0].node)


def _readers(select: exp.Select, tree: exp.Query) -> list[tuple[exp.Select | None, str]]:
    """The SELECTs that read it from their FROM, each with the name it has there; none where it is used otherwise."""
    holder = select.parent
    if isinstance(holder, exp.Subquery) and isinstance(holder.parent, exp.From | exp.Join) and is_plain_source(holder):
        return [(enclosing_select(holder), holder.alias.lower())]
    if not isinstance(holder, exp.CTE) or holder.args["alias"].args.get("columns"):
        return []
    if holder.parent is not None and holder.parent.args.get("recursive"):
        return []
    found: list[tuple[exp.Select | None, str]] = []
    for table in tree.find_all(exp.Table):
        if not table.db and table.name.lower() == holder.alias.lower() and cte_of(table) is holder:
            if not is_plain_source(table):
                return []
            found.append((enclosing_select(table), table.alias_or_name.lower()))
    return found


def _needs_all(reader: exp.Select | None, alias: str) -> bool:
    if reader is None or has_star(reader) or any(j.args.get("method") for j in reader.args.get("joins") or []):
        return True
    return any(_is_whole_row(n, alias) for n in reader.find_all(exp.Column))


def _is_whole_row(node: exp.Column, alias: str) -> bool:
    """`alias` or `alias.*`."""
    if isinstance(node.this, exp.Star):
        return node.table.lower() == alias
    return not node.table and node.name.lower() == alias
