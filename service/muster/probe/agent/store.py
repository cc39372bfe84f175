"""The rows that an agent holds: rings are read into DuckDB when somebody asks, so that every answer is fresh.

One thread at a time may use a store (`Agent` sees to that); DuckDB gives each request a snapshot of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from muster.engine import arrow_type, open_engine, quote
from muster.model import ColumnType
from muster.probe.agent import proc
from muster.probe.agent.lives import Life
from muster.probe.agent.state import Cpu, rank_row
from muster.probe.reader import discover
from muster.tables import COMM_COLLECTIVE, CPU_UTILIZATION, PROCESS_EXIT, PROCESS_RANK, REGISTRY, STEP_TIMING, TAGS, Table

LIVES_PER_RANK = 3
_OWN = ("_life", "_n")


@dataclass(frozen=True, slots=True)
class Node:
    """Where this agent runs, for the tags."""

    job: str
    node: str
    host: str
    addr: str


class Store:
    """Lives of one job on this node and their rows. Raises nothing for bad ring files: they are counted by the reader."""

    def __init__(self, roots: Sequence[Path], node: Node, *, rows_per_table: int, memory_limit: str) -> None:
        self.node = node
        self.lives: list[Life] = []
        self.expired: dict[tuple[int, str], int] = {}
        self.cpu: dict[int, Cpu] = {}
        self._roots = roots
        self._cap = rows_per_table
        self._engine = open_engine(memory_limit=memory_limit, threads=1)
        self._engine.execute("CREATE SCHEMA data")
        self._tables: dict[str, Table] = {}
        self._boot_id = proc.boot_id()
        self._seen: set[Path] = set()
        self._next_life = 1
        self._in_flight: dict[int, list[dict[str, Any]]] = {}
        for table in REGISTRY.values():
            if table.scope == "rank" and not table.optional and table is not PROCESS_RANK:
                self._create(table)

    def close(self) -> None:
        for life in self.lives:
            life.close()
        self._engine.close()

    @property
    def engine(self) -> duckdb.DuckDBPyConnection:
        return self._engine

    def tables(self) -> dict[str, tuple[ColumnType, ...]]:
        """What can be asked for: `schema.name` to columns, tags first."""
        tags = tuple(ColumnType(c.name, c.type) for c in TAGS)
        known = {**self._tables, PROCESS_RANK.full_name: PROCESS_RANK}
        return {name: tags + tuple(ColumnType(c.name, c.type) for c in t.columns) for name, t in sorted(known.items())}

    def newest(self) -> list[Life]:
        """The lives that make up the newest generation: of each rank its newest life, if it is of the generation that began
        last."""
        latest: dict[int, Life] = {}
        for life in self.lives:
            if life.meta is not None:
                latest[life.rank] = life
        if not latest:
            return []
        generation = max(latest.values(), key=_started).meta.generation  # type: ignore[union-attr]
        return [x for x in latest.values() if x.meta is not None and x.meta.generation == generation]

    def refresh(self) -> None:
        """Find new lives, read what all rings have, note who is gone, drop what is too old."""
        self._discover()
        found: dict[str, list[tuple[Life, Table, dict[str, list[Any]], int]]] = {}
        # in flight first: an operation that ends meanwhile is then seen twice, and shown once, and never missed
        self._in_flight = {life.number: life.in_flight() for life in self.lives}
        for life in self.lives:
            for table, columns, rows in life.update():
                found.setdefault(table.full_name, []).append((life, table, columns, rows))
            life.settle()
        for name, parts in found.items():
            self._insert(name, parts)
        self._expire()

    def add_cpu_rows(self, life: Life, rows: list[dict[str, Any]]) -> None:
        """Append samples made from outside to cpu.utilization."""
        names = [c.name for c in CPU_UTILIZATION.columns]
        columns = {n: [r.get(n) for r in rows] for n in names}
        self._insert(CPU_UTILIZATION.full_name, [(life, CPU_UTILIZATION, columns, len(rows))])

    def snapshot(self, lives: Sequence[Life]) -> Snapshot:
        """A cursor on which `view_name(table)` shows just the rows of these lives, as of now."""
        cursor = self._engine.cursor()
        try:
            in_flight = {life.number: self._in_flight.get(life.number, []) for life in lives}
            oldest = self._oldest_steps(cursor)
            _register(cursor, "lives", _lives_table(lives, self.node))
            _register(cursor, "rank_rows", self._rank_rows(lives, oldest, in_flight))
            _register(cursor, "inflight_rows", _in_flight_table(in_flight))
            _register(cursor, "exit_rows", _exit_table(lives))
            for table in self._tables.values():
                cursor.execute(_view(table))
            cursor.execute(_rank_view())
            begin(cursor)
        except BaseException:
            cursor.close()
            raise
        steps = [oldest[x.number] for x in lives if x.number in oldest]
        return Snapshot(cursor, max(steps, default=None), sum(x.rows_lost for x in lives))

    def _rank_rows(
        self, lives: Iterable[Life], oldest: Mapping[int, int], in_flight: Mapping[int, list[dict[str, Any]]]
    ) -> pa.Table:
        rows = [
            {"_life": x.number} | rank_row(x, oldest.get(x.number), self.cpu.get(x.number), in_flight.get(x.number, []))
            for x in lives
        ]
        return _arrow(("_life", *(c.name for c in PROCESS_RANK.columns)), PROCESS_RANK, rows)

    def _oldest_steps(self, cursor: duckdb.DuckDBPyConnection) -> dict[int, int]:
        name = quote(STEP_TIMING.full_name)
        rows = cursor.execute(f"SELECT _life, min(global_step) FROM data.{name} GROUP BY _life").fetchall()
        return {life: step for life, step in rows if step is not None}

    def _discover(self) -> None:
        for root in self._roots:
            for directory in discover(root, self.node.job):
                if directory.path in self._seen:
                    directory.close()
                    continue
                self._seen.add(directory.path)
                self.lives.append(Life(self._next_life, directory, self._boot_id))
                self._next_life += 1
        self.lives.sort(key=lambda x: (x.rank, x.directory.life))
        self._forget_old_lives()

    def _forget_old_lives(self) -> None:
        by_rank: dict[int, list[Life]] = {}
        for life in self.lives:
            by_rank.setdefault(life.rank, []).append(life)
        for lives in by_rank.values():
            for old in lives[:-LIVES_PER_RANK]:
                for table in old.kept:
                    self._engine.execute(f"DELETE FROM data.{quote(table)} WHERE _life = ?", [old.number])
                old.close()
                self.lives.remove(old)

    def _create(self, table: Table) -> None:
        columns = ", ".join(f"{quote(c.name)} {c.type}" for c in table.columns)
        self._engine.execute(f"CREATE TABLE data.{quote(table.full_name)} (_life INTEGER, _n BIGINT, {columns})")
        self._tables[table.full_name] = table

    def _insert(self, name: str, parts: list[tuple[Life, Table, dict[str, list[Any]], int]]) -> None:
        if name not in self._tables:
            self._create(parts[0][1])
        table = self._tables[name]
        lives: list[int] = []
        numbers: list[int] = []
        data: dict[str, list[Any]] = {c.name: [] for c in table.columns}
        for life, _, columns, rows in parts:
            first = life.taken.get(name, 0) + 1
            life.taken[name] = first + rows - 1
            life.kept[name] = life.kept.get(name, 0) + rows
            lives += [life.number] * rows
            numbers += range(first, first + rows)
            for column, values in data.items():
                values += columns.get(column) or [None] * rows
        arrays: list[pa.Array[Any]] = [pa.array(lives, pa.int32()), pa.array(numbers, pa.int64())]
        arrays += [_column(values, table.column(column).type) for column, values in data.items()]  # type: ignore[union-attr]
        batch = pa.table(arrays, names=[*_OWN, *data])
        with self._engine.cursor() as cursor:
            cursor.register("incoming", batch)
            cursor.execute(f"INSERT INTO data.{quote(name)} SELECT * FROM incoming")

    def _expire(self) -> None:
        """Keep the newest rows of every rank and table. A quarter more is let be, so that it need not be done at once."""
        for life in self.lives:
            for table, kept in life.kept.items():
                if kept <= self._cap + self._cap // 4:
                    continue
                last = life.taken[table] - self._cap
                self._engine.execute(f"DELETE FROM data.{quote(table)} WHERE _life = ? AND _n <= ?", [life.number, last])
                key = (life.rank, table)
                self.expired[key] = self.expired.get(key, 0) + kept - self._cap
                life.kept[table] = self._cap


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cursor to ask, and what the rows on it can say: the oldest step that all of its ranks still hold, rows lost."""

    cursor: duckdb.DuckDBPyConnection
    oldest_step: int | None
    rows_lost: int

    def close(self) -> None:
        self.cursor.close()


def begin(cursor: duckdb.DuckDBPyConnection) -> None:
    """Begin a transaction that sees what is there now (DuckDB begins in earnest at the first read)."""
    cursor.execute("BEGIN")
    cursor.execute(f"SELECT 1 FROM data.{quote(STEP_TIMING.full_name)} LIMIT 1").fetchall()


def view_name(table: str) -> str:
    """Name of the view that shows a table (`schema.name`) of a snapshot."""
    return f"v:{table}"


def _started(life: Life) -> int:
    return life.meta.started_ns if life.meta else 0


def _register(cursor: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    cursor.register(f"arrow_{name}", table)
    cursor.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM arrow_{name}")
    cursor.unregister(f"arrow_{name}")


def _lives_table(lives: Sequence[Life], node: Node) -> pa.Table:
    rows = []
    for life in lives:
        meta = life.meta
        rows.append(
            {
                "_life": life.number,
                "_host": node.host,
                "_addr": node.addr,
                "_rank": life.rank,
                "_node_rank": meta.node_rank if meta else None,
                "_local_rank": meta.local_rank if meta else None,
                "_role": meta.role if meta else None,
                "_generation": meta.generation if meta else None,
            }
        )
    tags = Table("", "", "", TAGS)
    return _arrow(("_life", *(c.name for c in TAGS)), tags, rows)


def _in_flight_table(in_flight: Mapping[int, list[dict[str, Any]]]) -> pa.Table:
    rows = [{"_life": number} | row for number, found in in_flight.items() for row in found]
    return _arrow(("_life", *(c.name for c in COMM_COLLECTIVE.columns)), COMM_COLLECTIVE, rows)


def _exit_table(lives: Sequence[Life]) -> pa.Table:
    """Rows of process.exit for those that could not write their own."""
    rows = []
    for life in lives:
        end = life.exit
        if end is not None and end.kind in ("vanished", "signal"):
            rows.append(
                {
                    "_life": life.number, "ts": end.at_ns, "rank": life.rank, "kind": end.kind, "code": end.code,
                    "signal": end.signal, "exception": None, "message": end.message, "last_step": end.last_step,
                }
            )  # fmt: skip
    return _arrow(("_life", *(c.name for c in PROCESS_EXIT.columns)), PROCESS_EXIT, rows)


def _arrow(names: Sequence[str], table: Table, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    arrays = []
    for name in names:
        column = table.column(name)
        kind = column.type if column is not None else "INTEGER"
        arrays.append(_column([r[name] for r in rows], kind))
    return pa.table(arrays, names=list(names))


def _column(values: list[Any], kind: str) -> pa.Array[Any]:
    found: pa.Array[Any] = pa.array(values, arrow_type(kind))
    return found


def _tag_list() -> str:
    return ", ".join(f"l.{quote(c.name)}" for c in TAGS)


def _view(table: Table) -> str:
    """Tags, then the columns. Rows of operations in flight and of ends from outside are part of their tables; an operation
    that ended while the rings were read is shown once."""
    names = [quote(c.name) for c in table.columns]
    body = f"SELECT _life, {', '.join(names)} FROM data.{quote(table.full_name)}"
    if table.full_name == COMM_COLLECTIVE.full_name:
        body += (
            f" UNION ALL SELECT _life, {', '.join(names)} FROM inflight_rows i WHERE NOT EXISTS ("
            f"SELECT 1 FROM data.{quote(table.full_name)} d WHERE d._life = i._life"
            " AND d.start_ns = i.start_ns AND d.thread_id = i.thread_id)"
        )
    elif table.full_name == PROCESS_EXIT.full_name:
        body += f" UNION ALL SELECT _life, {', '.join(names)} FROM exit_rows"
    columns = ", ".join(f"d.{n}" for n in names)
    return (
        f"CREATE TEMP VIEW {quote(view_name(table.full_name))} AS"
        f" SELECT {_tag_list()}, {columns} FROM ({body}) d JOIN lives l ON l._life = d._life"
    )


def _rank_view() -> str:
    columns = ", ".join(f"d.{quote(c.name)}" for c in PROCESS_RANK.columns)
    return (
        f"CREATE TEMP VIEW {quote(view_name(PROCESS_RANK.full_name))} AS"
        f" SELECT {_tag_list()}, {columns} FROM rank_rows d JOIN lives l ON l._life = d._life"
    )
