"""The rows that an agent holds: rings are read into DuckDB when somebody asks, so that every answer is fresh.

One thread at a time may use a store (`Agent` sees to that); DuckDB gives each request a snapshot of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from muster.engine import open_engine, quote
from muster.model import ColumnType
from muster.probe.agent import proc
from muster.probe.agent.lives import Life
from muster.probe.agent.retention import BYTES_PER_TABLE, Kept
from muster.probe.agent.shape import united
from muster.probe.agent.snapshot import (
    LeftOut,
    Node,
    Snapshot,
    arrow_rows,
    begin,
    column_of,
    exit_table,
    in_flight_table,
    lives_table,
    rank_view,
    register,
    view_of,
)
from muster.probe.agent.sources import Rows
from muster.probe.agent.state import Cpu, rank_row
from muster.probe.reader import discover
from muster.tables import PROCESS_RANK, REGISTRY, STEP_TIMING, TAGS, Table

LIVES_PER_RANK = 3
MAX_TABLES = 256
MIN_ROWS = 100
_OWN = ("_life", "_n")


@dataclass(slots=True)
class OfNode:
    """The owner of rows that belong to no rank."""

    number: int = 0  # lives count from 1
    rank: int | None = None
    kept: dict[str, Kept] = field(default_factory=dict)
    left_out: dict[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """New rows of one table of one life or of the node, as its ring or the registry describes them."""

    life: Life | OfNode
    table: Table
    columns: Mapping[str, list[Any]]
    rows: int


class Store:
    """Lives of one job on this node and their rows. Bad ring files raise nothing: the reader counts them, and `errors` what
    could not be kept of what it gave. `expired`: rows dropped by retention, by rank and table."""

    def __init__(
        self,
        roots: Sequence[Path],
        node: Node,
        *,
        rows_per_table: int,
        bytes_per_table: int = BYTES_PER_TABLE,
        memory_limit: str,
    ) -> None:
        self.node = node
        self.lives: list[Life] = []
        self.of_node = OfNode()
        self.expired: dict[tuple[int | None, str], int] = {}
        self.errors: dict[str, int] = {}
        self.cpu: dict[int, Cpu] = {}
        self._roots = roots
        self._max_rows = rows_per_table
        self._max_bytes = bytes_per_table
        self._engine = open_engine(memory_limit=memory_limit, threads=1)
        self._engine.execute("CREATE SCHEMA data")
        self._tables: dict[str, Table] = {}
        self._boot_id = proc.boot_id()
        self._seen: set[Path] = set()
        self._next_life = 1
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
        found: dict[str, list[Part]] = {}
        for life in self.lives:
            for table, columns, rows in life.update():
                found.setdefault(table.full_name, []).append(Part(life, table, columns, rows))
        for parts in found.values():
            self._insert(parts)
        self._expire()

    def offer(self, table: Table) -> None:
        """Have a table of the registry, though nobody has written to it."""
        if table.full_name not in self._tables:
            self._create(table)

    def add(self, new: Rows) -> None:
        """Keep rows that were seen from outside; those of a life that is no longer kept are dropped."""
        owners = {x.number: x for x in self.owners()}
        owner = owners.get(self.of_node.number if new.life is None else new.life)
        if owner is not None and new.rows:
            self.offer(new.table)
            columns = {c.name: [r.get(c.name) for r in new.rows] for c in new.table.columns}
            self._insert([Part(owner, new.table, columns, len(new.rows))])

    def snapshot(self, lives: Sequence[Life]) -> Snapshot:
        """A cursor on which `view_name(table)` shows just the rows of these lives, as of now."""
        cursor = self._engine.cursor()
        try:
            in_flight = {life.number: life.in_flight() for life in lives}
            oldest = self._oldest_steps(cursor)
            register(cursor, "lives", lives_table(lives, self.node))
            register(cursor, "rank_rows", self._rank_rows(lives, oldest, in_flight))
            register(cursor, "inflight_rows", in_flight_table(in_flight))
            register(cursor, "exit_rows", exit_table(lives))
            for table in self._tables.values():
                cursor.execute(view_of(table))
            cursor.execute(rank_view())
            begin(cursor)
        except BaseException:
            cursor.close()
            raise
        steps = [oldest[x.number] for x in lives if x.number in oldest]
        return Snapshot(cursor, max(steps, default=None), sum(x.rows_lost for x in lives), _left_out(lives))

    def _rank_rows(
        self, lives: Iterable[Life], oldest: Mapping[int, int], in_flight: Mapping[int, list[dict[str, Any]]]
    ) -> pa.Table:
        rows = [
            {"_life": x.number} | rank_row(x, oldest.get(x.number), self.cpu.get(x.number), in_flight.get(x.number, []))
            for x in lives
        ]
        return arrow_rows(("_life", *(c.name for c in PROCESS_RANK.columns)), PROCESS_RANK, rows)

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

    def _make_room(self, parts: Sequence[Part]) -> None:
        """Have a table with room for what the rings describe. Raises CatalogException where it cannot be had."""
        name = parts[0].table.full_name
        registered = REGISTRY.get(name)
        scope = "node" if isinstance(parts[0].life, OfNode) else "rank"
        if registered is not None and (registered is PROCESS_RANK or registered.scope != scope):
            raise duckdb.CatalogException(f"{name} is not a table of rings")
        for part in parts:
            known = self._tables.get(name)
            start = known or registered or replace(part.table, columns=())
            shape = united(start, part.table, fixed=registered is not None)
            if known is None:
                if len(self._tables) >= MAX_TABLES or not shape.table.columns:
                    raise duckdb.CatalogException(f"no room for table {name}")
                self._create(shape.table)
            for column in shape.added if known is not None else ():
                self._engine.execute(f"ALTER TABLE data.{quote(name)} ADD COLUMN {quote(column.name)} {column.type}")
            self._tables[name] = shape.table
            if shape.left_out and name not in part.life.left_out:
                self._count(name)
            part.life.left_out[name] = shape.left_out

    def _insert(self, parts: Sequence[Part]) -> None:
        """Keep new rows of one table. What cannot be kept is counted, as error and as expired, and never stops the rest."""
        name = parts[0].table.full_name
        try:
            self._make_room(parts)
            rows = self._arrow_of(name, parts)
            self._put(name, rows)
        except (duckdb.Error, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            self._count(name)
            if isinstance(error, duckdb.OutOfMemoryException):
                self._keep_half()
            for part in parts:
                self._note_expired(part.life, name, part.rows)
            return
        first = 0
        for part in parts:
            part.life.kept.setdefault(name, Kept()).add(part.rows, rows.slice(first, part.rows).nbytes)
            first += part.rows

    def _arrow_of(self, name: str, parts: Sequence[Part]) -> pa.Table:
        table = self._tables[name]
        lives: list[int] = []
        numbers: list[int] = []
        data: dict[str, list[Any]] = {c.name: [] for c in table.columns}
        for part in parts:
            kept = part.life.kept.get(name)
            first = 1 + (kept.taken if kept is not None else 0)
            lives += [part.life.number] * part.rows
            numbers += range(first, first + part.rows)
            left_out = part.life.left_out.get(name, {})
            for column, values in data.items():
                found = None if column in left_out else part.columns.get(column)
                values += found if found is not None else [None] * part.rows
        arrays: list[pa.Array[Any]] = [pa.array(lives, pa.int32()), pa.array(numbers, pa.int64())]
        arrays += [column_of(data[c.name], c.type) for c in table.columns]
        return pa.table(arrays, names=[*_OWN, *data])

    def _put(self, name: str, rows: pa.Table) -> None:
        with self._engine.cursor() as cursor:
            cursor.register("incoming", rows)
            columns = ", ".join(quote(n) for n in rows.column_names)
            cursor.execute(f"INSERT INTO data.{quote(name)} ({columns}) SELECT * FROM incoming")

    def _expire(self) -> None:
        """Keep the newest rows of every rank and table, within rows and bytes."""
        for life in self.owners():
            for table, kept in life.kept.items():
                self._drop_oldest(life, table, kept.surplus(self._max_rows, self._max_bytes))

    def owners(self) -> list[Life | OfNode]:
        return [*self.lives, self.of_node]

    def _drop_oldest(self, life: Life | OfNode, table: str, rows: int) -> None:
        if rows > 0:
            last = life.kept[table].drop(rows)
            self._engine.execute(f"DELETE FROM data.{quote(table)} WHERE _life = ? AND _n <= ?", [life.number, last])
            self._note_expired(life, table, rows)

    def _keep_half(self) -> None:
        """The memory limit was hit: keep half of what there is, and no more from now on."""
        most = max((k.rows for x in self.owners() for k in x.kept.values()), default=0)
        self._max_rows = max(MIN_ROWS, min(self._max_rows, most // 2))
        try:
            for life in self.owners():
                for table, kept in life.kept.items():
                    self._drop_oldest(life, table, kept.rows - self._max_rows)
            self._engine.execute("CHECKPOINT")  # gives the memory of deleted rows back
        except duckdb.Error:  # no memory even for that, or requests still look at those rows: the next refresh tries again
            self._count("memory")

    def _note_expired(self, life: Life | OfNode, table: str, rows: int) -> None:
        key = (life.rank, table)
        self.expired[key] = self.expired.get(key, 0) + rows

    def _count(self, where: str) -> None:
        self.errors[where] = self.errors.get(where, 0) + 1


def _started(life: Life) -> int:
    return life.meta.started_ns if life.meta else 0


def _left_out(lives: Sequence[Life]) -> dict[str, tuple[LeftOut, ...]]:
    """What answers over these lives lack, by table."""
    found: dict[str, list[LeftOut]] = {}
    for life in lives:
        for table, columns in life.left_out.items():
            for column, why in columns.items():
                note = f"{table}.{column} of rank {life.rank} {why} (NULL)"
                found.setdefault(table, []).append(LeftOut(column.lower(), note))
    return {table: tuple(columns) for table, columns in found.items()}
