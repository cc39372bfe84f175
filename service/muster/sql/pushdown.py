"""Which columns and which conditions of a statement can go down to one of its tables.

Both are only ever narrowed where it is certain: the gateway evaluates the statement as it was written, on rows and columns
of which those it cannot need were left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from muster.model import ColumnType
from muster.sql.functions import functions
from muster.sql.scopes import (
    Source,
    conjuncts,
    enclosing_select,
    function_name,
    is_bare_star,
    is_plain_source,
    sources,
)
from muster.sql.types import INTEGERS

_OPAQUE = (exp.Query, exp.Exists, exp.Window, exp.Star, exp.Lambda, exp.Comprehension, exp.Columns, exp.Any, exp.All)


def mentioned_columns(tree: exp.Expr, table: exp.Table, columns: list[str]) -> list[str]:
    """Those of a table's columns that the statement can need: all where a star may mean them, else all it names."""
    if _needs_all(tree, table, {c.lower() for c in columns}):
        return columns
    alias = table.alias_or_name.lower()
    names = {i.name.lower() for i in tree.find_all(exp.Identifier) if not _names_relation(i) and not _anothers(i, alias)}
    return [c for c in columns if c.lower() in names]


def _anothers(node: exp.Identifier, alias: str) -> bool:
    """Whether a name is a column that says that it belongs to a relation of another name."""
    column = node.parent
    return isinstance(column, exp.Column) and node.arg_key == "this" and column.table.lower() not in ("", alias)


def _names_relation(node: exp.Identifier) -> bool:
    """Whether a name is that of a table or its alias, and so none of a column."""
    return isinstance(node.parent, exp.Table) or (isinstance(node.parent, exp.TableAlias) and node.arg_key == "this")


def _needs_all(tree: exp.Expr, table: exp.Table, own: set[str]) -> bool:
    alias = table.alias_or_name.lower()
    select = enclosing_select(table)
    if not is_plain_source(table) or select is None:
        return True
    if any(str(j.args.get("method") or "").upper() == "NATURAL" for j in select.args.get("joins") or []):
        return True
    for node in tree.walk():
        if is_bare_star(node):
            holder = enclosing_select(node)
            if holder is select:
                return True
            column = node.parent
            if isinstance(column, exp.Column) and column.table.lower() == alias:
                return True
        elif isinstance(node, exp.Columns) or function_name(node) == "columns":
            return True
        elif (
            isinstance(node, exp.Column) and not node.table and node.name.lower() == alias and node.name.lower() not in own
        ):
            return True  # the alias as a value: the whole row
    return False


def pushed_conditions(table: exp.Table, own: list[str], others: dict[str, set[str] | None]) -> list[exp.Expr]:
    """Conditions of the SELECT around `table` that speak of this table only and hold for every row that can matter.

    `own` are the table's columns; `others` maps the alias of each other source to its columns, None where unknown.
    """
    select = enclosing_select(table)
    mine = next((s for s in sources(select) if s.node is table), None) if select is not None else None
    if select is None or mine is None or not is_plain_source(table):
        return []
    return alone_conditions(select, mine, {c.lower() for c in own}, others)


def alone_conditions(
    select: exp.Select, mine: Source, names: set[str], others: Mapping[str, set[str] | None]
) -> list[exp.Expr]:
    """Conditions of a SELECT that speak of one of its relations only and may as well be tested before the joins. Copies,
    over bare columns."""
    if not _keeps_all_rows(sources(select), mine):
        return []
    where = select.args.get("where")
    candidates = conjuncts(where.this if where is not None else None)
    if mine.join is not None and not mine.join.args.get("side"):
        candidates += conjuncts(mine.join.args.get("on"))
    hidden = {n for columns in others.values() for n in (columns or ())}
    unknown = any(columns is None for columns in others.values())
    found = (_alone(condition, mine.alias, names, hidden, unknown) for condition in candidates)
    return [condition for condition in found if condition is not None]


_PLAIN = (
    exp.Column, exp.Identifier, exp.Literal, exp.Null, exp.Paren, exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT,
    exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between, exp.Is, exp.Cast, exp.DataType, exp.Placeholder,
)  # fmt: skip


def same_everywhere(conditions: list[exp.Expr], types: Mapping[str, ColumnType]) -> list[exp.Expr]:
    """Only those conditions that mean the same whatever the settings of an engine: comparisons of whole numbers."""
    kinds = {name.lower(): column.type for name, column in types.items()}
    return [
        c
        for c in conditions
        if all(isinstance(n, _PLAIN) for n in c.walk())
        and all(kinds.get(n.name.lower()) in INTEGERS for n in c.find_all(exp.Column))
        and not any(n.is_string for n in c.find_all(exp.Literal) if not isinstance(n.parent, exp.Cast))
    ]


def _keeps_all_rows(found: list[Source], mine: Source) -> bool:
    """Whether a condition on `mine` after the joins is the same as one before them."""
    seen = mine.join is None
    if mine.join is not None and not _is_inner(mine.join):
        return False
    for source in found:
        if source.node is mine.node:
            seen = True
            continue
        if source.join is None:
            continue
        side = str(source.join.args.get("side") or "").upper()
        if seen and side in ("RIGHT", "FULL"):
            return False
    return True


def _is_inner(join: exp.Join) -> bool:
    kind = str(join.args.get("kind") or "").upper()
    return kind in ("", "INNER", "CROSS") and not join.args.get("side") and not join.args.get("method")


def _alone(condition: exp.Expr, alias: str, own: set[str], hidden: set[str], unknown: bool) -> exp.Expr | None:
    """A copy of a condition over bare columns of the table, or None where it speaks of anything else."""
    if any(isinstance(n, _OPAQUE) or not is_plain_call(n) for n in condition.walk()):
        return None
    for column in condition.find_all(exp.Column):
        name = column.name.lower()
        if name not in own or column.args.get("db"):
            return None
        if column.table:
            if column.table.lower() != alias:
                return None
        elif unknown or name in hidden:
            return None
    copy = condition.copy()
    holder = exp.Paren(this=copy)  # so that the root itself can be replaced
    for column in list(holder.find_all(exp.Column)):
        column.set("table", None)
    alone: exp.Expr = holder.this
    return alone


def is_plain_call(node: exp.Expr) -> bool:
    """Whether a node is no call, or one of a function of one row."""
    name = function_name(node)
    return name is None or (name in functions().scalar and name not in ("unnest", "columns", "grouping", "grouping_id"))
