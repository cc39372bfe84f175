"""Shards that differ: a table or column that one of them lacks, or has in another type.

A plan is made for the tables of the job, which are the union of what the shards have. For a shard that differs, the table
in a fragment's SQL is replaced by a subquery with the columns of the plan: typed NULLs for columns that the shard lacks,
casts where its type is narrower, and no rows at all for a table that it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp

from muster.errors import Internal
from muster.model import ColumnType
from muster.sql.builder import column as column_named
from muster.sql.builder import identifier
from muster.sql.dialect import DIALECT, write
from muster.sql.scalars import null, type_expression
from muster.sql.scopes import fed_tables, table_key
from muster.sql.types import widens
from muster.tables import TAG_NAMES, TAGS

Columns = tuple[ColumnType, ...]


@dataclass(frozen=True, slots=True)
class Adapted:
    """A fragment for one shard: its SQL there, tables that are absent, and what to tell about columns (`table.column`)."""

    sql: str
    absent: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()


def adapted(sql: str, tables: Sequence[str], planned: Mapping[str, Columns], held: Mapping[str, Columns] | None) -> Adapted:
    """The SQL of a fragment over `tables` for a shard that holds `held` (None: it has not said, so nothing is changed).

    `planned` are the columns that the plan rests on, without tags.
    """
    if held is None:
        return Adapted(sql)
    known = {name.lower(): columns for name, columns in held.items()}
    differing = []
    for name in tables:
        wanted = planned.get(name)
        if wanted is not None and _own(known.get(name)) != wanted:
            differing.append((name, wanted, _own(known.get(name))))
    return _adapted(sql, tuple(differing)) if differing else Adapted(sql)


@lru_cache(maxsize=4096)
def _own(columns: Columns | None) -> Columns | None:
    return None if columns is None else tuple(c for c in columns if c.name not in TAG_NAMES)


@lru_cache(maxsize=512)
def _adapted(sql: str, differing: tuple[tuple[str, Columns, Columns | None], ...]) -> Adapted:
    tree = DIALECT.parse(sql)[0]
    if tree is None:
        raise Internal("A fragment holds no statement.")
    mentioned = {i.name.lower() for i in tree.find_all(exp.Identifier)}
    everything = any(isinstance(s.parent, exp.Select | exp.Column) for s in tree.find_all(exp.Star))
    absent, lacking, unlike = [], [], []
    for name, wanted, held in differing:
        if held is None:
            absent.append(name)
        else:
            have = {c.name.lower(): c.type for c in held}
            for column in wanted:
                if column.name.lower() in mentioned or everything:
                    kind = have.get(column.name.lower())
                    if kind is None:
                        lacking.append(f"{name}.{column.name}")
                    elif not _fits(kind, column.type):
                        unlike.append(f"{name}.{column.name}")
        for node in [t for t in fed_tables(tree) if table_key(t) == name]:
            node.replace(_stand_in(node, wanted, held))
    return Adapted(write(tree), tuple(absent), tuple(lacking), tuple(unlike))


def _stand_in(node: exp.Table, wanted: Columns, held: Columns | None) -> exp.Subquery:
    have = {c.name.lower(): c for c in held or ()}
    tags = [ColumnType(t.name, t.type) for t in TAGS]
    expressions = []
    for column in [*tags, *(c for c in wanted if c.name not in TAG_NAMES)]:
        own = have.get(column.name.lower())
        if held is not None and column.name in TAG_NAMES:
            value: exp.Expr = column_named(column.name)
        elif own is None or not _fits(own.type, column.type):
            value = null(column.type)
        else:
            source = column_named(own.name)
            value = source if own.type == column.type else exp.Cast(this=source, to=type_expression(column.type))
        expressions.append(exp.Alias(this=value, alias=identifier(column.name)))
    query = exp.Select(expressions=expressions)
    if held is None:
        query = query.where(exp.false())
    else:
        query = query.from_(exp.Table(this=node.this.copy(), db=node.args["db"].copy()))
    alias = node.args.get("alias")
    return exp.Subquery(this=query, alias=alias.copy() if alias is not None else exp.TableAlias(this=node.this.copy()))


def _fits(own: str, wanted: str) -> bool:
    return own == wanted or widens(own, wanted)
