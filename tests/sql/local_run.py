"""Runs a plan in this process: shards are DuckDBs that hold the rows of disjoint ranks; all goes through Arrow IPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa

from muster.model import ColumnType
from muster.sql.bind import quoted
from muster.sql.guard import SHARD, guard
from muster.sql.plan import Fragment, Merge, Plan, Scalar
from muster.sql.scalars import substitute
from muster.tables import NODES


class LocalShard:
    """One agent: `tables` maps `schema.name` to the rows of its ranks, tags first."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.connection = duckdb.connect(":memory:", config={"threads": "1"})
        self.connection.execute("SET TimeZone = 'UTC'")
        for name, rows in tables.items():
            schema, _, table = name.partition(".")
            self.connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            self.connection.register("incoming", rows)
            self.connection.execute(f'CREATE TABLE "{schema}"."{table}" AS SELECT * FROM incoming')
            self.connection.unregister("incoming")

    def query(self, sql: str) -> pa.Table:
        guarded = guard(sql, limits=SHARD)
        return over_wire(self.connection.sql(guarded.sql).to_arrow_table())


def over_wire(table: pa.Table) -> pa.Table:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


class LocalRun:
    """Executes plans over shards. `moved` counts the bytes of the last run's fragments."""

    def __init__(self, shards: Sequence[LocalShard], nodes: pa.Table | None = None) -> None:
        self.shards = shards
        self.nodes = nodes
        self.moved = 0
        self._engine = duckdb.connect(":memory:", config={"threads": "1"})

    def run(self, plan: Plan) -> dict[str, pa.Table]:
        with self._engine.cursor() as connection:
            return self._run(connection, plan)

    def _run(self, connection: duckdb.DuckDBPyConnection, plan: Plan) -> dict[str, pa.Table]:
        connection.execute("SET TimeZone = 'UTC'")
        if self.nodes is not None:
            connection.register(NODES.full_name, self.nodes)
        self.moved = 0
        values: dict[str, tuple[object, str]] = {}
        for wave in plan.waves:
            for fragment in wave.fragments:
                self._fetch(connection, fragment, values)
            computed = {s.id: (self._scalar(connection, s, values), s.type) for s in wave.scalars}
            values |= computed
        return {m.statement: self._merge(connection, m, values) for m in plan.merges}

    def _fetch(
        self, connection: duckdb.DuckDBPyConnection, fragment: Fragment, values: Mapping[str, tuple[object, str]]
    ) -> None:
        sql = substitute(fragment.sql, {n: values[n] for n in fragment.scalars})
        parts = [shard.query(sql) for shard in self.shards]
        self.moved += sum(p.nbytes for p in parts)
        assert len({str(p.schema) for p in parts}) <= 1
        casts = ", ".join(f"CAST({quoted(c.name)} AS {c.type}) AS {quoted(c.name)}" for c in fragment.columns)
        if parts:
            raw = f"raw_{fragment.id}"
            connection.register(raw, pa.concat_tables(parts).combine_chunks())
            connection.execute(f"CREATE TEMP VIEW {fragment.id} AS SELECT {casts} FROM {raw}")
        else:
            connection.execute(f"CREATE TEMP VIEW {fragment.id} AS SELECT {empty(fragment.columns)} WHERE false")

    def _scalar(
        self, connection: duckdb.DuckDBPyConnection, scalar: Scalar, values: Mapping[str, tuple[object, str]]
    ) -> object:
        rows = connection.execute(substitute(scalar.sql, {n: values[n] for n in scalar.scalars})).fetchall()
        assert len(rows) == 1
        assert len(rows[0]) == 1
        return rows[0][0]

    def _merge(
        self, connection: duckdb.DuckDBPyConnection, merge: Merge, values: Mapping[str, tuple[object, str]]
    ) -> pa.Table:
        sql = substitute(merge.sql, {n: values[n] for n in merge.scalars})
        return connection.sql(sql).to_arrow_table()


def empty(columns: Sequence[ColumnType]) -> str:
    return ", ".join(f"CAST(NULL AS {c.type}) AS {quoted(c.name)}" for c in columns)
