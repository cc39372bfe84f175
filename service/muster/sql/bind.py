"""Binding by the engine itself: names and types of what a statement gives, on empty typed tables of the job.

The tables lie in a database of their own, which nothing but planning uses. `global.s.t` and `s.t` are the same table.
Every table has the tags first (`tables.TAGS`), then its columns, but for those of the gateway, which are as they are.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Mapping
from typing import Any

import duckdb
import pyarrow as pa

from muster.errors import Internal, NotDistributable, SqlBind, SqlSyntax
from muster.model import ColumnType
from muster.sql import information
from muster.sql.plan import Catalogue
from muster.sql.types import is_type_text
from muster.tables import GATEWAY_TABLES, REGISTRY, TAG_NAMES, TAGS
from muster.wording import first_line

_LINE = re.compile(r"^LINE (\d+): (.*)$", re.MULTILINE)
_KEPT = 1024
_PREFIX = "DESCRIBE\n"


class Binder:
    """The tables of one catalogue, empty. Thread-safe; a bind takes about 1 ms."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._lock = threading.Lock()
        self._tables = {name.lower(): (name, columns) for name, columns in catalogue.tables.items()}
        self._gateways = {information.planned(name): table for name, table in GATEWAY_TABLES.items()}
        for name, table in self._gateways.items():
            self._tables[name] = (name, tuple(ColumnType(c.name, c.type) for c in table.columns))
        self._owned = {name.lower() for name in catalogue.owned}
        self._made: set[str] = set()
        self._checked: dict[str, bool] = {}
        self._described: dict[str, tuple[ColumnType, ...]] = {}
        self._connection = duckdb.connect(
            ":memory:", config={"threads": "1", "enable_external_access": "false", "python_enable_replacements": "false"}
        )
        self._connection.execute("ATTACH ':memory:' AS \"global\"; USE \"global\"; SET TimeZone = 'UTC'")
        self._connection.execute("SET lock_configuration = true")

    @property
    def names(self) -> Collection[str]:
        """Every table, as people call it: `schema.name`."""
        return [information.public(name) for name, _ in self._tables.values()]

    def columns(self, table: str) -> tuple[ColumnType, ...]:
        """Columns of a table as `SELECT *` gives them, tags first."""
        name, columns = self._tables[table.lower()]
        if self.is_gateways(name):
            return columns
        tags = tuple(ColumnType(t.name, t.type) for t in TAGS)
        return tags + tuple(c for c in columns if c.name.lower() not in TAG_NAMES)

    def is_gateways(self, table: str) -> bool:
        """Whether the gateway itself answers a table: it is never sent to a shard."""
        return table.lower() in self._gateways

    def owned_by_rank(self, table: str) -> bool:
        """Whether `_rank` of a row is never NULL, so that a group by `_rank` lies on one shard."""
        known = REGISTRY.get(table.lower())
        return known.scope == "rank" if known is not None else table.lower() in self._owned

    def describe(self, sql: str, params: Mapping[str, Any] | None = None) -> tuple[ColumnType, ...]:
        """Output columns of a statement. Raises SqlBind in the engine's words, with the place in `sql`."""
        with self._lock:
            known = self._described.get(sql) if not params else None
            if known is not None:
                return known
            try:
                rows = self._connection.execute(_PREFIX + sql, dict(params) if params else None).fetchall()
            except (duckdb.Error, UnicodeDecodeError) as error:
                raise _bind_error(error, sql) from None
            found = tuple(ColumnType(str(row[0]), str(row[1])) for row in rows)
            if not params:
                if len(self._described) >= _KEPT:
                    self._described.clear()
                self._described[sql] = found
        return found

    def over_arrow(self, sql: str) -> tuple[tuple[ColumnType, ...], pa.Schema]:
        """The columns of a statement as they are after a way over Arrow, and its Arrow schema. Raises SqlBind."""
        with self._lock:
            try:
                rows: pa.Table = self._connection.sql(sql).to_arrow_table()
                self._connection.register("over_arrow", rows)
                try:
                    found = self._connection.execute("DESCRIBE SELECT * FROM over_arrow").fetchall()
                finally:
                    self._connection.unregister("over_arrow")
            except (duckdb.Error, UnicodeDecodeError) as error:
                raise _bind_error(error, sql) from None
        return tuple(ColumnType(str(r[0]), str(r[1])) for r in found), rows.schema

    def state_fits(self, restored: str, stored: pa.DataType) -> bool:
        """Whether a restored state (`to_aggregate_state(CAST(NULL AS …), …)`) is stored exactly as the exported one is.

        The engine casts states silently: with another type, a wrong number comes out and no error.
        """
        key = f"{restored} {stored}"
        known = self._checked.get(key)
        if known is None:
            try:
                _, schema = self.over_arrow(f"SELECT {restored} AS s")
                known = schema.field(0).type.equals(stored)
            except SqlBind:
                known = False
            self._checked[key] = known
        return known

    def prepare(self, tables: Collection[str]) -> None:
        """Make those tables, once. Raises NotDistributable for a column whose type is not one."""
        with self._lock:
            for table in tables:
                key = information.planned(table.lower())
                if key not in self._made:
                    self._make(key)
                    self._made.add(key)

    def _make(self, key: str) -> None:
        name, _ = self._tables[key]
        schema, _, table = name.partition(".")
        parts = []
        for column in self.columns(key):
            if not is_type_text(column.type):
                raise _bad_type(name, column)
            parts.append(f"{quoted(column.name)} {column.type}")
        try:
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
            self._connection.execute(f"CREATE TABLE {quoted(schema)}.{quoted(table)} ({', '.join(parts)})")
        except duckdb.Error as error:
            raise NotDistributable(
                f"The columns that the probes report for {name} make no table: {first_line(error)}",
                hint="Update the probe, or leave the table out.",
            ) from None


def quoted(name: str) -> str:
    """A name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def _bad_type(table: str, column: ColumnType) -> NotDistributable:
    return NotDistributable(
        f"The column {column.name} of {table} has the type {column.type[:80]!r}, which is not one.",
        hint="Update the probe that offers it.",
    )


def _bind_error(error: duckdb.Error | UnicodeDecodeError, sql: str) -> SqlBind | SqlSyntax | Internal:
    if isinstance(error, UnicodeDecodeError):
        return SqlBind(first_line(error))
    if isinstance(error, duckdb.InternalException | duckdb.OutOfMemoryException | duckdb.FatalException):
        return Internal(f"The engine could not bind the statement: {first_line(error)}")
    text = str(error)
    body = text.partition("\n\nLINE ")[0].strip()
    kind, _, message = body.partition(": ")
    message = message if kind.endswith("Error") else body
    head, _, rest = message.partition("\n")
    hint = " ".join(line.strip() for line in rest.splitlines() if line.strip())[:600] or None
    make = SqlSyntax if isinstance(error, duckdb.ParserException | duckdb.SyntaxException) else SqlBind
    return make(head.strip() or "The statement does not bind.", hint=hint, position=_position(text, sql))


def _position(text: str, sql: str) -> tuple[int, int] | None:
    """The place that the engine points at with a caret below a shortened copy of the line."""
    match = _LINE.search(text)
    if match is None:
        return None
    below = text[match.end() :].lstrip("\n").split("\n", 1)[0]
    caret = below.find("^")
    line = int(match[1]) - _PREFIX.count("\n")
    lines = sql.split("\n")
    if caret < 0 or not 1 <= line <= len(lines):
        return None
    shown = match[2]
    offset = caret - len(f"LINE {match[1]}: ")
    front = shown.startswith("...")
    snippet = shown.removeprefix("...").removesuffix("...")
    start = lines[line - 1].find(snippet)
    if start < 0:
        return line, 1
    return line, start + offset - (3 if front else 0) + 1


__all__ = ["Binder", "quoted"]
