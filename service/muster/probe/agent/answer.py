"""Run the subqueries of one request on a snapshot and write their answers: one Arrow stream each, back to back."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import duckdb
import orjson
import pyarrow as pa
from sqlglot import exp

from muster.engine import arrow_of
from muster.errors import DeadlineExceeded, MusterError, OverBudget, ShardFailed, StatementFailed
from muster.probe.agent.store import Snapshot, begin, view_name
from muster.protocol import SubQuery
from muster.sql.dialect import write
from muster.sql.guard import SHARD, guard

_STATEMENT_ERRORS = (
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.InvalidInputException,
    duckdb.BinderException,
    duckdb.SyntaxException,
    duckdb.ParserException,
    duckdb.CatalogException,
    duckdb.NotSupportedError,
)


class Watch:
    """Interrupts a cursor at a deadline or when the caller has gone; `tell` says which."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, cancelled: threading.Event) -> None:
        self._cursor = cursor
        self._cancelled = cancelled

    def run(self, sql: str, until: float) -> pa.Table:
        """The answer to one statement. Raises DeadlineExceeded, StatementFailed or ShardFailed."""
        done = threading.Event()
        late = threading.Event()

        def interrupt() -> None:
            while not done.wait(min(0.05, max(0.0, until - time.monotonic()))):
                if self._cancelled.is_set() or time.monotonic() >= until:
                    late.set()
                    self._cursor.interrupt()
                    done.wait(0.01)

        timer = threading.Thread(target=interrupt, daemon=True)
        timer.start()
        try:
            return arrow_of(self._cursor, sql)
        except duckdb.Error as error:
            done.set()
            self._cursor.rollback()  # an error ends the transaction; what follows sees the rows of now
            begin(self._cursor)
            if late.is_set():
                raise DeadlineExceeded("The subquery was stopped at its deadline.") from None
            if isinstance(error, _STATEMENT_ERRORS):
                raise StatementFailed(_message(error)) from None
            raise ShardFailed(_message(error)) from None
        finally:
            done.set()
            timer.join()


class Texts:
    """The SQL that is run for the SQL that was sent: guarded, with the snapshot's views in place of the tables. The same
    few texts come again and again, so they are kept."""

    def __init__(self, kept: int = 512) -> None:
        self._kept = kept
        self._found: dict[tuple[str, int], str] = {}
        self._lock = threading.Lock()

    def runnable(self, sql: str, tables: Collection[str]) -> str:
        """Raises SqlSyntax, SqlForbidden, SqlBind (an unknown table, with `table`) or TooLarge."""
        key = (sql, len(tables))  # tables are only ever added
        with self._lock:
            known = self._found.get(key)
        if known is not None:
            return known
        tree = guard(sql, tables=tables, limits=SHARD).tree
        for table in list(tree.find_all(exp.Table)):
            _to_view(table)
        text = write(tree)
        with self._lock:
            if len(self._found) >= self._kept:
                self._found.clear()
            self._found[key] = text
        return text


class Answerer:
    """Answers the subqueries of one request, in their order."""

    def __init__(
        self,
        snapshot: Snapshot,
        tables: Collection[str],
        texts: Texts,
        ranks: list[int],
        cancelled: threading.Event,
    ) -> None:
        self._tables = tables
        self._texts = texts
        self._watch = Watch(snapshot.cursor, cancelled)
        self._common = {
            "as_of": datetime.now(UTC).isoformat(),
            "ranks": orjson.dumps(ranks).decode(),
            "rows_lost": str(snapshot.rows_lost),
        }
        if snapshot.oldest_step is not None:
            self._common["oldest_step"] = str(snapshot.oldest_step)

    def answer(self, query: SubQuery, until: float) -> bytes:
        """One Arrow IPC stream; an error is a stream without columns whose metadata holds the problem."""
        start = time.monotonic()
        try:
            table = self._run(query, min(until, start + query.deadline_ms / 1000))
        except MusterError as error:
            return _stream(pa.table({}), self._common | {"id": query.id, "error": orjson.dumps(error.problem()).decode()})
        batches = table.to_batches()
        meta = self._common | {
            "id": query.id,
            "rows": str(table.num_rows),
            "batches": str(len(batches)),
            "elapsed_ms": f"{(time.monotonic() - start) * 1000:.3f}",
        }
        return _stream(table, meta)

    def _run(self, query: SubQuery, until: float) -> pa.Table:
        text = self._texts.runnable(query.sql, self._tables)
        if time.monotonic() >= until:
            raise DeadlineExceeded("The deadline passed before the subquery began.")
        found = self._watch.run(text, until)
        if found.num_rows > query.max_rows:
            raise OverBudget(
                f"The subquery gives {found.num_rows} rows; at most {query.max_rows} are allowed.", observed=found.num_rows
            )
        if found.nbytes > query.max_bytes:
            raise OverBudget(
                f"The subquery gives {found.nbytes} bytes; at most {query.max_bytes} are allowed.", observed=found.nbytes
            )
        return found


def _to_view(table: exp.Table) -> None:
    """Name the snapshot's view in place of `schema.table`, under the alias by which the statement calls it."""
    if not table.db:
        return
    alias = table.alias or table.name
    view = view_name(f"{table.db}.{table.name}".lower())
    table.set("this", exp.to_identifier(view, quoted=True))
    table.set("db", None)
    table.set("catalog", None)
    if not table.alias:
        table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))


def _stream(table: pa.Table, meta: Mapping[str, str]) -> bytes:
    sink = io.BytesIO()
    schema = table.schema.with_metadata({k.encode(): v.encode() for k, v in meta.items()})
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in table.replace_schema_metadata(schema.metadata).to_batches():
            writer.write_batch(batch)
    return sink.getvalue()


def _message(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
