"""The oracle: one DuckDB that holds the rows of every rank, asked in the user's own words.

A federated answer must equal what this gives. It shares nothing with the planner: no rewriting, no fragments.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from muster.model import ColumnType
from muster.sql.plan import Exactness, OutputColumn, Statement
from muster.tables import NODES, REGISTRY, TAGS

REL = 1e-9


class Oracle:
    """`tables` maps `schema.name` to rows of all ranks, the tag columns first."""

    def __init__(self, tables: Mapping[str, pa.Table], nodes: pa.Table | None = None) -> None:
        self._connection = duckdb.connect(":memory:", config={"threads": "1"})
        self._connection.execute("ATTACH ':memory:' AS \"global\"; USE \"global\"; SET TimeZone = 'UTC'")
        relations = dict(tables)
        if nodes is not None:
            relations[NODES.full_name] = nodes
        for name, rows in relations.items():
            schema, _, table = name.partition(".")
            self._connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            self._connection.register("incoming", rows)
            self._connection.execute(f'CREATE TABLE "{schema}"."{table}" AS SELECT * FROM incoming')
            self._connection.unregister("incoming")

    def fails_unoptimised(self, statement: Statement) -> bool:
        """Whether the statement fails once nothing is optimised away.

        One DuckDB does not compute what nobody reads, so a division by zero in an unused column may pass unseen there
        and not in shards, or the other way round. SQL leaves that open.
        """
        cursor = self._connection.cursor()
        try:
            cursor.execute("USE \"global\"; SET TimeZone = 'UTC'; PRAGMA disable_optimizer")
            cursor.sql(statement.sql).to_arrow_table()
        except duckdb.Error:
            return True
        finally:
            cursor.close()
        return False

    def run(self, statement: Statement) -> pa.Table:
        """The statement's answer. With `use_global` off, over the rows of rank 0."""
        if not statement.use_global:
            return self._coordinator().run(Statement(statement.id, statement.sql, statement.params))
        values = {k: _typed(v) for k, v in named_params(statement.sql, statement.params).items()}
        cursor = self._connection.cursor()
        try:
            cursor.execute("USE \"global\"; SET TimeZone = 'UTC'")
            return cursor.sql(statement.sql, params=values or None).to_arrow_table()
        finally:
            cursor.close()

    def describe(self, statement: Statement) -> list[ColumnType]:
        """Names and types of the answer."""
        values = {k: _typed(v) for k, v in named_params(statement.sql, statement.params).items()}
        rows = self._connection.execute(f"DESCRIBE {statement.sql}", values or None).fetchall()
        return [ColumnType(r[0], r[1]) for r in rows]

    def _coordinator(self) -> Oracle:
        names = self._connection.execute(
            "SELECT table_schema || '.' || table_name FROM information_schema.tables WHERE table_catalog = 'global'"
        ).fetchall()
        tables = {}
        for (name,) in names:
            node = name in REGISTRY and REGISTRY[name].scope == "node"
            where = "" if name == NODES.full_name else " WHERE _node_rank = 0" if node else " WHERE _rank = 0"
            tables[name] = self._connection.sql(f"SELECT * FROM {name}{where}").to_arrow_table()
        return Oracle(tables)


def named_params(sql: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some values that a text names as `$name`: DuckDB refuses others."""
    return {name: value for name, value in values.items() if re.search(rf"\${name}\b", sql)}


def with_tags(rows: pa.Table, rank: int, *, host: str, node_rank: int = 0, generation: str = "g1") -> pa.Table:
    """The rows of one rank with its tag columns in front."""
    values: dict[str, Any] = {
        "_host": host,
        "_addr": f"http://{host}:8701",
        "_rank": rank,
        "_node_rank": node_rank,
        "_local_rank": rank,
        "_role": f"dp={rank}",
        "_generation": generation,
    }
    types = {"BIGINT": pa.int64(), "VARCHAR": pa.string()}
    tags = {t.name: pa.array([values[t.name]] * rows.num_rows, types[t.type]) for t in TAGS}
    return pa.table({**tags, **{n: rows.column(n) for n in rows.column_names}})


def differences(
    got: pa.Table, want: pa.Table, columns: Sequence[OutputColumn] | None = None, *, ordered: bool = False
) -> str | None:
    """What differs between two answers, or None.

    The order of rows counts only with `ordered`. Floats of columns marked `float` may differ in their last digits; of
    all others, not at all. Columns marked `approx` or `arbitrary` are not compared.
    """
    if got.num_columns != want.num_columns:
        return f"{got.num_columns} columns instead of {want.num_columns}"
    if got.num_rows != want.num_rows:
        return f"{got.num_rows} rows instead of {want.num_rows}: {got.to_pylist()[:5]} / {want.to_pylist()[:5]}"
    marks = [c.exactness for c in columns] if columns else [Exactness.EXACT] * got.num_columns
    keep = [i for i, m in enumerate(marks) if m in (Exactness.EXACT, Exactness.FLOAT)]
    loose = [marks[i] is Exactness.FLOAT for i in keep]
    got_rows, want_rows = _rows(got, keep), _rows(want, keep)
    if not ordered:
        if not any(loose) and Counter(map(_key, got_rows)) == Counter(map(_key, want_rows)):
            return None
        got_rows, want_rows = (sorted(r, key=lambda row: _sort_key(row, loose)) for r in (got_rows, want_rows))
    for i, (a, b) in enumerate(zip(got_rows, want_rows, strict=True)):
        for value, expected, is_loose in zip(a, b, loose, strict=True):
            if not _same(value, expected, is_loose):
                return f"row {i}: {value!r} instead of {expected!r} in {a} / {b}"
    return None


def _rows(table: pa.Table, keep: list[int]) -> list[tuple[Any, ...]]:
    lists = [_exact_times(table.column(i)).to_pylist() for i in keep]
    return list(zip(*lists, strict=True)) if lists else [()] * table.num_rows


def _exact_times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Python's datetime has no nanoseconds: such columns are compared as integers."""
    return column.cast(pa.int64()) if column.type == pa.timestamp("ns") else column


def _same(a: Any, b: Any, loose: bool) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return math.isclose(a, b, rel_tol=REL, abs_tol=1e-9) if loose else a == b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y, loose) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k], loose) for k in a)
    return type(a) is type(b) and a == b


def _key(value: Any) -> str:
    return repr(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, tuple | list):
        return tuple(_plain(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _plain(v)) for k, v in sorted(value.items()))
    return value


def _sort_key(row: tuple[Any, ...], loose: list[bool]) -> tuple[Any, ...]:
    exact = tuple(_key(v) for v, is_loose in zip(row, loose, strict=True) if not is_loose)
    rough = tuple(_rough(v) for v, is_loose in zip(row, loose, strict=True) if is_loose)
    return exact, rough


def _rough(value: Any) -> tuple[int, float | str]:
    if isinstance(value, float) and not math.isnan(value):
        return 0, value
    return (1, float(value)) if isinstance(value, int | Decimal) else (2, _key(value))


def _typed(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return duckdb.LongValue(value)
    if isinstance(value, float):
        return duckdb.DoubleValue(value)
    return value
