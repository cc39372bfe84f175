"""Run the subqueries of one request on a snapshot and write their answers: one Arrow stream each, back to back."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb
import orjson
import pyarrow as pa
from sqlglot import exp

from muster.errors import DeadlineExceeded, MusterError, OverBudget, ShardFailed, SqlBind, StatementFailed
from muster.probe.agent.snapshot import Snapshot, begin, view_name
from muster.protocol import RankRef, SubQuery
from muster.sql.dialect import write
from muster.sql.guard import SHARD, guard
from muster.wording import first_line

_BIND_ERRORS = (duckdb.BinderException, duckdb.CatalogException, duckdb.SyntaxException, duckdb.ParserException)
_STATEMENT_ERRORS = (
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.InvalidInputException,
    duckdb.NotSupportedError,
)
_STATEMENT_TEXTS = ("Conversion Error", "Out of Range Error", "Invalid Input Error", "Not implemented Error")
"""How the same errors begin when they come from within a stream of batches, where their class is lost."""
BATCH_ROWS = 16_384
MAX_NAMED = 100  # missing ranks and notes in the metadata of an answer
MAX_ANSWER_BYTES = 256 << 20
"""Of all answers of one request together."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one answer may have; `room`: bytes left to the request as a whole."""

    rows: int
    bytes: int
    room: int

    def check(self, rows: int, size: int) -> None:
        """Raises OverBudget."""
        if rows > self.rows:
            raise OverBudget(f"The subquery gives more than {self.rows} rows.", hint="Filter, aggregate or LIMIT.")
        if size > min(self.bytes, self.room):
            limit, whose = min((self.bytes, "the subquery"), (self.room, "the request"))
            raise OverBudget(f"The answer to {whose} has more than {limit} bytes.", hint="Ask for fewer columns or rows.")


class Watch:
    """Runs statements on a cursor; stops them at a deadline, over budget, or when the caller has gone."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, cancelled: threading.Event) -> None:
        self._cursor = cursor
        self._cancelled = cancelled

    def run(self, sql: str, until: float, budget: Budget) -> pa.Table:
        """The answer to one statement, never more of it in memory than the budget and a batch.

        Raises DeadlineExceeded, OverBudget, SqlBind, StatementFailed or ShardFailed.
        """
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
            return self._read(sql, budget)
        except (duckdb.Error, OSError, UnicodeDecodeError) as error:
            done.set()
            timer.join()
            self._cursor.rollback()  # an error ends the transaction; what follows sees the rows of now
            begin(self._cursor)
            raise (
                DeadlineExceeded("The subquery was stopped at its deadline.") if late.is_set() else _meant(error)
            ) from None
        finally:
            done.set()
            timer.join()

    def _read(self, sql: str, budget: Budget) -> pa.Table:
        relation = self._cursor.sql(sql)
        if relation is None:
            raise duckdb.InvalidInputException("not a SELECT")
        with relation.to_arrow_reader(BATCH_ROWS) as reader:
            rows = size = 0
            batches = []
            for batch in reader:
                rows, size = rows + batch.num_rows, size + batch.nbytes
                budget.check(rows, size)
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)


def _meant(error: Exception) -> MusterError:
    """A statement that does not fit the data is its author's, one that does not fit the tables the gateway's (it has bound
    it to what it knows of this shard), anything else the shard's."""
    text = first_line(error)
    if isinstance(error, _BIND_ERRORS):
        return SqlBind(text)
    if isinstance(error, _STATEMENT_ERRORS) or text.startswith(_STATEMENT_TEXTS):
        return StatementFailed(text)
    return ShardFailed(text)


@dataclass(frozen=True, slots=True)
class Runnable:
    """A statement that can be run on a snapshot, the tables that it reads, and the columns (in small letters) that it
    names; None for all, where there is a star."""

    sql: str
    tables: tuple[str, ...]
    columns: frozenset[str] | None


class Texts:
    """The SQL that is run for the SQL that was sent: guarded, with the snapshot's views in place of the tables. The same
    few texts come again and again, so they are kept."""

    def __init__(self, kept: int = 512) -> None:
        self._kept = kept
        self._found: dict[tuple[str, int], Runnable] = {}
        self._lock = threading.Lock()

    def runnable(self, sql: str, tables: Collection[str]) -> Runnable:
        """Raises SqlSyntax, SqlForbidden, SqlBind (an unknown table, with `table`) or TooLarge."""
        key = (sql, len(tables))  # tables are only ever added
        with self._lock:
            known = self._found.get(key)
        if known is not None:
            return known
        tree = guard(sql, tables=tables, limits=SHARD).tree
        read = list(tree.find_all(exp.Table))
        star = any(isinstance(s.parent, exp.Select | exp.Column) for s in tree.find_all(exp.Star))
        columns = None if star else frozenset(c.name.lower() for c in tree.find_all(exp.Column))
        used = tuple(sorted({f"{t.db}.{t.name}".lower() for t in read if t.db}))
        named = {(t.db.lower(), t.name.lower()) for t in read if t.db and not t.alias}
        for table in read:
            _to_view(table)
        for column in tree.find_all(exp.Column):
            if (column.db.lower(), column.table.lower()) in named:  # schema.table.column: the view goes by the table's name
                column.set("db", None)
                column.set("catalog", None)
        made = Runnable(write(tree), used, columns)
        with self._lock:
            if len(self._found) >= self._kept:
                self._found.clear()
            self._found[key] = made
        return made


class Answerer:
    """Answers the subqueries of one request, in their order."""

    def __init__(
        self,
        snapshot: Snapshot,
        tables: Collection[str],
        texts: Texts,
        ranks: list[int],
        missing: list[RankRef],
        cancelled: threading.Event,
    ) -> None:
        self._tables = tables
        self._texts = texts
        self._watch = Watch(snapshot.cursor, cancelled)
        self._room = MAX_ANSWER_BYTES
        self._common = {
            "as_of": datetime.now(UTC).isoformat(),
            "ranks": orjson.dumps(ranks).decode(),
            "rows_lost": str(snapshot.rows_lost),
        }
        if missing:
            self._common["missing"] = orjson.dumps([m.model_dump() for m in missing[:MAX_NAMED]]).decode()
        self._left_out = snapshot.left_out
        if snapshot.oldest_step is not None:
            self._common["oldest_step"] = str(snapshot.oldest_step)

    def answer(self, query: SubQuery, until: float) -> bytes:
        """One Arrow IPC stream; an error is a stream without columns whose metadata holds the problem."""
        start = time.monotonic()
        try:
            runnable = self._texts.runnable(query.sql, self._tables)
            table = self._run(runnable, query, min(until, start + query.deadline_ms / 1000))
        except MusterError as error:
            return _stream(pa.table({}), self._common | {"id": query.id, "error": orjson.dumps(error.problem()).decode()})
        batches = table.to_batches()
        meta = self._common | {
            "id": query.id,
            "rows": str(table.num_rows),
            "batches": str(len(batches)),
            "elapsed_ms": f"{(time.monotonic() - start) * 1000:.3f}",
        }
        left_out = [x for name in runnable.tables for x in self._left_out.get(name, ())]
        notes = [x.note for x in left_out if runnable.columns is None or x.column in runnable.columns]
        if notes:
            meta["notes"] = orjson.dumps(notes[:MAX_NAMED]).decode()
        return _stream(table, meta)

    def _run(self, runnable: Runnable, query: SubQuery, until: float) -> pa.Table:
        if time.monotonic() >= until:
            raise DeadlineExceeded("The deadline passed before the subquery began.")
        found = self._watch.run(runnable.sql, until, Budget(query.max_rows, query.max_bytes, self._room))
        self._room -= found.nbytes
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
