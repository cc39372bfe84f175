"""A shard in this process, over Arrow tables: for recorded jobs, and for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import anyio.to_thread
import duckdb
import pyarrow as pa

from muster.engine import arrow_of, engine_name, open_engine, profile_of, quote
from muster.errors import DeadlineExceeded, MusterError, OverBudget, SqlBind, StatementFailed
from muster.federation.shards.base import SubAnswer
from muster.model import ColumnType, ShardInfo, ShardKind
from muster.protocol import RankRef, SubQuery
from muster.sql.guard import SHARD, guard
from muster.wording import first_line


class LocalShard:
    """Holds `tables` (`schema.name` to rows, tags included) of some ranks in a DuckDB of its own."""

    def __init__(
        self, id: str, host: str, ranks: Sequence[int], tables: Mapping[str, pa.Table], *, memory_limit: str = "1GB"
    ) -> None:
        self._engine = open_engine(memory_limit=memory_limit, threads=1)
        self._lock = threading.Lock()
        for name, table in tables.items():
            schema, _, short = name.partition(".")
            self._engine.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}")
            self._engine.register("incoming", table)
            self._engine.execute(f"CREATE TABLE {quote(schema)}.{quote(short)} AS SELECT * FROM incoming")
            self._engine.unregister("incoming")
        self._info = ShardInfo(
            id=id,
            kind=ShardKind.BUNDLE,
            addr=f"local:{id}",
            host=host,
            ranks=tuple(ranks),
            tables={name: self._columns(name) for name in tables},
            engine=engine_name(),
            profile=profile_of(self._engine),
        )

    @property
    def info(self) -> ShardInfo:
        return self._info

    async def query(
        self,
        subqueries: Sequence[SubQuery],
        ranks: Sequence[RankRef],
        schemas: Mapping[str, pa.Schema],
        deadline_s: float,
    ) -> Sequence[SubAnswer]:
        return await anyio.to_thread.run_sync(
            self._answer, subqueries, [r.rank for r in ranks], time.monotonic() + deadline_s
        )

    def _answer(self, subqueries: Sequence[SubQuery], ranks: Sequence[int], until: float) -> list[SubAnswer]:
        with self._lock:
            return [self._one(q, ranks, until) for q in subqueries]

    def _one(self, query: SubQuery, ranks: Sequence[int], until: float) -> SubAnswer:
        now = datetime.now(UTC)
        known = self._info.tables or {}
        try:
            text = guard(query.sql, tables=known.keys(), limits=SHARD).sql
            if time.monotonic() >= until:
                raise DeadlineExceeded("The deadline passed before the subquery began.")
            with self._engine.cursor() as cursor:
                timer = threading.Timer(max(0.0, until - time.monotonic()), cursor.interrupt)
                timer.start()
                try:
                    table = arrow_of(cursor, text)
                finally:
                    timer.cancel()
                    timer.join()
        except MusterError as error:
            return SubAnswer(query.id, error=error, ranks=tuple(ranks), as_of=now)
        except duckdb.BinderException as error:
            return SubAnswer(query.id, error=SqlBind(first_line(error)), ranks=tuple(ranks), as_of=now)
        except duckdb.InterruptException:
            late = DeadlineExceeded("The subquery was stopped at its deadline.")
            return SubAnswer(query.id, error=late, ranks=tuple(ranks), as_of=now)
        except (duckdb.Error, UnicodeDecodeError) as error:
            return SubAnswer(query.id, error=StatementFailed(first_line(error)), ranks=tuple(ranks), as_of=now)
        if table.num_rows > query.max_rows or table.nbytes > query.max_bytes:
            over = OverBudget(
                f"{table.num_rows:,} rows of {table.nbytes:,} bytes, at most {query.max_rows:,} and {query.max_bytes:,}."
            )
            return SubAnswer(query.id, error=over, ranks=tuple(ranks), as_of=now)
        return SubAnswer(query.id, table=table, ranks=tuple(ranks), as_of=now, nbytes=table.nbytes)

    def _columns(self, name: str) -> tuple[ColumnType, ...]:
        schema, _, short = name.partition(".")
        rows = self._engine.execute(f"DESCRIBE {quote(schema)}.{quote(short)}").fetchall()
        return tuple(ColumnType(r[0], r[1]) for r in rows)
