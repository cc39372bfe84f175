"""Where findings are computed: a hardened DuckDB of its own, in which the step results are tables."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from muster.diagnosis.schema import Parameter
from muster.engine import arrow_type, open_engine, quote
from muster.errors import DeadlineExceeded, StatementFailed
from muster.model import ColumnType
from muster.sql.plan import ParamValue
from muster.tables import NODES

ROSTER: tuple[ColumnType, ...] = tuple(ColumnType(c.name, c.type) for c in NODES.columns)
"""Relation `roster`: the rows of cluster.nodes."""
COVERAGE: tuple[ColumnType, ...] = (
    ColumnType("step", "VARCHAR"),
    ColumnType("required", "BOOLEAN"),
    ColumnType("rank", "BIGINT"),
    ColumnType("host", "VARCHAR"),
    ColumnType("state", "VARCHAR"),
    ColumnType("reason", "VARCHAR"),
)
"""Relation `coverage`: for each step the state of each rank of the roster."""
RECORDED: tuple[ColumnType, ...] = (
    ColumnType("name", "VARCHAR"),
    ColumnType("rank", "BIGINT"),
    ColumnType("host", "VARCHAR"),
)
"""Relation `recorded`: which of the tables that the diagnosis reads are offered for which rank."""
_PARAM_TYPES = {"int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "text": "VARCHAR"}


def param_columns(parameters: Mapping[str, Parameter]) -> tuple[ColumnType, ...]:
    """Relation `params`: one row, a column for each parameter."""
    return tuple(ColumnType(n, _PARAM_TYPES[p.type]) for n, p in parameters.items())


class Desk:
    """The database. Make one for a service; ask it for a `Workspace` per diagnosis and evaluation."""

    def __init__(self, *, memory_limit: str = "512MB", threads: int = 1) -> None:
        self._engine = open_engine(memory_limit=memory_limit, threads=threads)

    def workspace(self, deadline_s: float) -> Workspace:
        return Workspace(self._engine.cursor(), deadline_s)

    def close(self) -> None:
        self._engine.close()


class Workspace:
    """Temporary tables of one diagnosis; a context manager. Use it from one thread."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, deadline_s: float) -> None:
        self._cursor = cursor
        self._late = False
        self._timer = threading.Timer(max(0.05, deadline_s), self._stop)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._timer.cancel()
        self._cursor.close()

    def add(self, name: str, columns: Sequence[ColumnType], rows: pa.Table | None) -> None:
        """Make a table of these columns, in order, cast to their types; empty where there are no rows."""
        target = quote(name)
        listed = ", ".join(f"{quote(c.name)} {c.type}" for c in columns)
        self._run(lambda: self._cursor.execute(f"CREATE TEMP TABLE {target} ({listed})"))
        if rows is None or rows.num_rows == 0:
            return
        incoming = rows.rename_columns([f"c{i}" for i in range(rows.num_columns)])
        parts = ", ".join(f"CAST(c{i} AS {c.type})" for i, c in enumerate(columns))
        self._cursor.register("incoming", incoming)
        try:
            self._run(lambda: self._cursor.execute(f"INSERT INTO {target} SELECT {parts} FROM incoming"))
        finally:
            self._run(lambda: self._cursor.unregister("incoming"))

    def add_rows(self, name: str, columns: Sequence[ColumnType], rows: Iterable[Sequence[Any]]) -> None:
        """The same from Python rows."""
        lists = list(zip(*rows, strict=True)) or [() for _ in columns]
        arrays = [pa.array(v, arrow_type(c.type)) for v, c in zip(lists, columns, strict=True)]
        self.add(name, columns, pa.table(arrays, names=[c.name for c in columns]) if arrays else None)

    def add_params(self, parameters: Mapping[str, Parameter], values: Mapping[str, ParamValue]) -> None:
        columns = param_columns(parameters) or (ColumnType("none", "BOOLEAN"),)
        self.add_rows("params", columns, [[values.get(c.name) for c in columns]])

    def derive(self, name: str, sql: str) -> None:
        """Make a table of a SELECT over what is there. Raises StatementFailed, DeadlineExceeded."""
        self._run(lambda: self._cursor.execute(f"CREATE TEMP TABLE {quote(name)} AS {_text(sql)}"))

    def ask(self, sql: str, limit: int) -> list[dict[str, Any]]:
        """The first rows of the answer to a SELECT over what is there. Raises StatementFailed, DeadlineExceeded."""
        rows = self._run(lambda: self._cursor.execute(_text(sql)).fetchmany(limit))
        names = [d[0] for d in self._cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def describe(self, sql: str) -> tuple[ColumnType, ...]:
        """Output columns of a SELECT. Raises StatementFailed, also for anything that is not exactly one SELECT."""
        _check_select(sql)
        rows = self._run(lambda: self._cursor.execute(f"DESCRIBE {_text(sql)}").fetchall())
        return tuple(ColumnType(str(r[0]), str(r[1])) for r in rows)

    def _run(self, work: Any) -> Any:
        try:
            return work()
        except duckdb.Error as error:
            if self._late:
                raise DeadlineExceeded("The findings were not computed in time.") from None
            raise StatementFailed(str(error).strip().split("\n\n")[0], hint=None) from None

    def _stop(self) -> None:
        self._late = True
        self._cursor.interrupt()


def _text(sql: str) -> str:
    return sql.rstrip().rstrip(";")


def _check_select(sql: str) -> None:
    """Raises StatementFailed for anything that is not exactly one SELECT."""
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise StatementFailed(str(error).strip().split("\n\n")[0]) from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise StatementFailed("It is not exactly one SELECT.")
