"""Reading a tree: which tables a SELECT reads, which names mean which column, which conditions stand alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from muster.sql.functions import functions

_SET_RETURNING = frozenset({"unnest"})


@dataclass(frozen=True, slots=True)
class Source:
    """One relation in FROM: the node, its alias, and the JOIN that brings it in (None for the first)."""

    node: exp.Expr
    alias: str
    join: exp.Join | None


def fed_tables(tree: exp.Expr) -> Iterator[exp.Table]:
    """Tables named `schema.table`."""
    return (t for t in tree.find_all(exp.Table) if t.db)


def table_key(table: exp.Table) -> str:
    """`schema.table` in lower case."""
    return f"{table.db}.{table.name}".lower()


def sources(select: exp.Select) -> list[Source]:
    """The relations of FROM and its joins, in order."""
    found: list[Source] = []
    start = select.args.get("from_")
    if start is not None:
        found.append(Source(start.this, start.this.alias_or_name.lower(), None))
    found.extend(Source(j.this, j.this.alias_or_name.lower(), j) for j in select.args.get("joins") or [])
    found.extend(Source(node, node.alias_or_name.lower(), None) for node in select.args.get("laterals") or [])
    return found


def is_plain_source(node: exp.Expr) -> bool:
    """A table or subquery in FROM without renamed columns or anything attached."""
    if not isinstance(node, exp.Table | exp.Subquery):
        return False
    alias = node.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        return False
    allowed = {"this", "db", "catalog", "alias"}
    return all(not value for key, value in node.args.items() if key not in allowed)


def enclosing_select(node: exp.Expr) -> exp.Select | None:
    """The SELECT that a node belongs to, looking outwards."""
    return node.find_ancestor(exp.Select)


def enclosing_query(cte: exp.CTE) -> exp.Expr | None:
    """The query whose WITH clause holds a CTE."""
    return cte.parent.parent if cte.parent is not None else None


def own_nodes(select: exp.Expr, parts: Iterable[exp.Expr] | None = None) -> Iterator[exp.Expr]:
    """Nodes of a SELECT (or of some parts of it) without what lies inside nested queries and CTEs."""
    stack: list[exp.Expr] = list(parts) if parts is not None else [select]
    while stack:
        node = stack.pop()
        if node is not select and isinstance(node, exp.Query | exp.With):
            if isinstance(node, exp.Subquery):
                yield node
            continue
        yield node
        stack.extend(node.iter_expressions())


def nested_queries(node: exp.Expr) -> Iterator[exp.Query]:
    """The outermost queries inside a node, CTEs left out."""
    stack = list(node.iter_expressions())
    while stack:
        child = stack.pop()
        if isinstance(child, exp.With):
            continue
        if isinstance(child, exp.Select | exp.SetOperation):
            yield child
        else:
            stack.extend(child.iter_expressions())


def conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that an AND joins, brackets removed."""
    if condition is None:
        return []
    found, stack = [], [condition]
    while stack:
        node = stack.pop()
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.And):
            stack += [node.expression, node.this]
        else:
            found.append(node)
    return found


def function_name(node: exp.Expr) -> str | None:
    """Name of a call in lower case."""
    return node.name.lower() if isinstance(node, exp.Anonymous) else None


def aggregates(select: exp.Select) -> list[exp.Expr]:
    """The aggregate calls of a SELECT itself, each with its FILTER or WITHIN GROUP around it; not those under OVER."""
    found = []
    for node in own_nodes(select, clauses(select)):
        if function_name(node) in functions().aggregate:
            outer = whole_call(node)
            if not (isinstance(outer.parent, exp.Window) and outer.parent.this is outer):
                found.append(outer)
    return found


def holds_aggregate(node: exp.Expr) -> bool:
    """Whether an expression holds an aggregate call of its own SELECT."""
    for inner in own_nodes(exp.Select(), [node]):
        if function_name(inner) in functions().aggregate:
            outer = whole_call(inner)
            if not (isinstance(outer.parent, exp.Window) and outer.parent.this is outer):
                return True
    return False


def whole_call(node: exp.Expr) -> exp.Expr:
    """A call with FILTER, WITHIN GROUP or IGNORE NULLS around it."""
    while isinstance(node.parent, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls) and (
        node.parent.this is node
    ):
        node = node.parent
    return node


def windows(select: exp.Select) -> list[exp.Window]:
    """The window calls of a SELECT itself."""
    return [n for n in own_nodes(select, clauses(select)) if isinstance(n, exp.Window)]


def has_subquery(select: exp.Select) -> bool:
    """Whether the expressions of a SELECT hold a query."""
    return any(True for clause in clauses(select) for _ in clause.find_all(exp.Select, exp.SetOperation, exp.Exists))


def makes_rows(select: exp.Select) -> bool:
    """Whether a call in the SELECT list makes several rows of one."""
    return any(function_name(n) in _SET_RETURNING for n in own_nodes(select, clauses(select)))


def has_star(select: exp.Select) -> bool:
    """Whether the SELECT list names columns without saying which: `*`, `t.*`, COLUMNS(…)."""
    return any(
        is_bare_star(n) or isinstance(n, exp.Columns) or function_name(n) == "columns"
        for n in own_nodes(select, clauses(select))
    )


def is_bare_star(node: exp.Expr) -> bool:
    """A star that is not the one of `count(*)`."""
    return isinstance(node, exp.Star) and not (
        isinstance(node.parent, exp.Anonymous) and node.parent.name.lower() == "count"
    )


def output_name(projection: exp.Expr) -> str | None:
    """The name that the tree itself gives an output column; None where the engine makes one up."""
    if isinstance(projection, exp.Alias):
        return projection.alias
    if isinstance(projection, exp.Column) and not isinstance(projection.this, exp.Star):
        return projection.name
    return None


def unaliased(projection: exp.Expr) -> exp.Expr:
    """An output column without its alias."""
    return projection.this if isinstance(projection, exp.Alias) else projection


def is_column(node: exp.Expr, name: str, alias: str) -> bool:
    """Whether a node is that column of the only source of its SELECT."""
    return (
        isinstance(node, exp.Column)
        and node.name.lower() == name.lower()
        and not node.args.get("db")
        and (not node.table or node.table.lower() == alias)
    )


def cte_of(table: exp.Table) -> exp.CTE | None:
    """The CTE that an unqualified table name means, looking outwards; None where it means none."""
    name = table.name.lower()
    node: exp.Expr | None = table
    while node is not None:
        parent = node.parent
        if isinstance(node, exp.CTE) and isinstance(parent, exp.With):
            # Earlier CTEs of the same list are visible, later ones and itself are not.
            for cte in reversed(parent.expressions[: parent.expressions.index(node)]):
                if isinstance(cte, exp.CTE) and cte.alias.lower() == name:
                    return cte
            if parent.args.get("recursive") and node.alias.lower() == name:
                return node
            # the query that holds this WITH does not see its list a second time
            node = parent.parent.parent if parent.parent is not None else None
            continue
        if isinstance(node, exp.Query):
            with_ = node.args.get("with_")
            if with_ is not None:
                for cte in reversed(with_.expressions):
                    if isinstance(cte, exp.CTE) and cte.alias.lower() == name:
                        return cte
        node = parent
    return None


def uses(cte: exp.Expr, holder: exp.Expr) -> int:
    """How often a CTE is read within the query that holds it."""
    name = cte.alias.lower()
    return sum(1 for t in holder.find_all(exp.Table) if t.name.lower() == name and not t.db and cte_of(t) is cte)


def drop_unused(tree: exp.Expr) -> None:
    """Take out CTEs that nothing reads, in place."""
    for with_ in list(tree.find_all(exp.With)):
        holder = with_.parent
        for cte in reversed(list(with_.expressions)):
            if holder is not None and not with_.args.get("recursive") and not uses(cte, holder):
                cte.pop()
        if holder is not None and not with_.expressions:
            holder.set("with_", None)


def clauses(select: exp.Select) -> list[exp.Expr]:
    """The expressions of a SELECT: everything but FROM and WITH."""
    parts: list[exp.Expr] = []
    for key, value in select.args.items():
        if key in ("from_", "with_", "joins", "laterals"):
            continue
        parts += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, exp.Expr)]
    for join in select.args.get("joins") or []:
        if join.args.get("on") is not None:
            parts.append(join.args["on"])
    return parts
