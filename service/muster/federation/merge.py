"""Finish a plan in DuckDB: what the shards sent becomes relations, scalars and merge statements run on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import anyio.to_thread
import duckdb
import pyarrow as pa

from muster.engine import arrow_of, arrow_schema, open_engine, quote
from muster.errors import DeadlineExceeded, Internal, OverBudget, StatementFailed
from muster.sql.plan import Fragment, Merge, Scalar
from muster.sql.scalars import substitute
from muster.wording import first_line

T = TypeVar("T")
Values = Mapping[str, tuple[Any, str]]


class Merger:
    """One hardened database; every request works on a cursor of its own (`Session`)."""

    def __init__(self, *, memory_limit: str = "2GB", threads: int = 2) -> None:
        self._engine = open_engine(memory_limit=memory_limit, threads=threads)
        self._schemas: dict[str, pa.Schema] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        self._engine.close()

    def session(self, until: float) -> Session:
        """Work that must end at `until` (monotonic clock)."""
        return Session(self._engine.cursor(), until)

    def schema(self, fragment: Fragment) -> pa.Schema:
        """The Arrow schema in which a shard must send a fragment."""
        with self._lock:
            known = self._schemas.get(fragment.id)
            if known is None:
                known = arrow_schema(self._engine, {c.name: c.type for c in fragment.columns})
                if len(self._schemas) > 4096:
                    self._schemas.clear()
                self._schemas[fragment.id] = known
            return known


class Session:
    """Relations and values of one request. Its methods run off the event loop, one after another."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, until: float) -> None:
        self._cursor = cursor
        self._until = until

    def close(self) -> None:
        self._cursor.close()

    async def add(self, fragment: Fragment, parts: Sequence[pa.Table], schema: pa.Schema) -> None:
        """Make what the shards sent for a fragment a relation of its name, its columns cast to their bound types."""
        await self._run(lambda: self._add(fragment, parts, schema))

    async def add_relation(self, name: str, rows: pa.Table) -> None:
        """Make a table of the gateway's own a relation of its name."""
        await self._run(lambda: self._register(name, rows))

    async def scalar(self, scalar: Scalar, values: Values) -> Any:
        """The value of a scalar. Raises StatementFailed, DeadlineExceeded."""
        table = await self._run(lambda: arrow_of(self._cursor, _text(scalar.sql, scalar.scalars, values)))
        if table.num_rows != 1 or table.num_columns != 1:
            raise Internal(f"Scalar {scalar.id} gave {table.num_rows} rows.")
        return table.column(0)[0].as_py()

    async def merge(self, merge: Merge, values: Values) -> pa.Table:
        """The answer to a statement, its columns named as one DuckDB would. Raises StatementFailed, DeadlineExceeded."""
        found = await self._run(lambda: arrow_of(self._cursor, _text(merge.sql, merge.scalars, values)))
        if found.num_columns != len(merge.columns):
            raise Internal(f"The merge gave {found.num_columns} columns, {len(merge.columns)} were planned.")
        return found.rename_columns([c.name for c in merge.columns])

    def _add(self, fragment: Fragment, parts: Sequence[pa.Table], schema: pa.Schema) -> None:
        whole = pa.concat_tables(parts).combine_chunks() if parts else schema.empty_table()
        self._register(f"raw {fragment.id}", whole)
        casts = ", ".join(f"CAST({quote(c.name)} AS {c.type}) AS {quote(c.name)}" for c in fragment.columns)
        self._cursor.execute(f"CREATE TEMP VIEW {quote(fragment.id)} AS SELECT {casts} FROM {quote(f'raw {fragment.id}')}")

    def _register(self, name: str, table: pa.Table) -> None:
        self._cursor.register(name, table)

    async def _run(self, work: Callable[[], T]) -> T:
        left = self._until - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("The deadline passed before the answers were merged.")
        return await anyio.to_thread.run_sync(self._timed, work, left)

    def _timed(self, work: Callable[[], T], left: float) -> T:
        timer = threading.Timer(left, self._cursor.interrupt)
        timer.start()
        try:
            return work()
        except duckdb.InterruptException:
            raise DeadlineExceeded("The merge was stopped at the deadline.") from None
        except duckdb.OutOfMemoryException as error:
            raise OverBudget(f"The merge needs too much memory: {first_line(error)}", hint="Filter or aggregate.") from None
        except duckdb.InternalException as error:
            raise Internal(f"The engine failed: {first_line(error)}") from None
        except (duckdb.Error, UnicodeDecodeError) as error:
            raise StatementFailed(first_line(error)) from None
        finally:
            timer.cancel()


def _text(sql: str, wanted: Sequence[str], values: Values) -> str:
    return substitute(sql, {k: values[k] for k in wanted}) if wanted else sql
