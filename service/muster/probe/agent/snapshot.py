"""What one request sees of a store: a cursor on which views show just the rows of its ranks, as of one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from muster.engine import arrow_type, quote
from muster.probe.agent.lives import Life
from muster.tables import COMM_COLLECTIVE, PROCESS_EXIT, PROCESS_RANK, STEP_TIMING, TAG_NAMES, TAGS, Table


@dataclass(frozen=True, slots=True)
class Node:
    """Where this agent runs, for the tags."""

    job: str
    node: str
    host: str
    addr: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A column (in small letters) of a rank that is NULL in place of what the rank wrote, and the note that says so."""

    column: str
    note: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cursor to ask, and what the rows on it can say: the oldest step that all of its ranks still hold, rows lost, and by
    table what of it was left out."""

    cursor: duckdb.DuckDBPyConnection
    oldest_step: int | None
    rows_lost: int
    left_out: Mapping[str, tuple[LeftOut, ...]]

    def close(self) -> None:
        self.cursor.close()


def begin(cursor: duckdb.DuckDBPyConnection) -> None:
    """Begin a transaction that sees what is there now (DuckDB begins in earnest at the first read)."""
    cursor.execute("BEGIN")
    cursor.execute(f"SELECT 1 FROM data.{quote(STEP_TIMING.full_name)} LIMIT 1").fetchall()


def view_name(table: str) -> str:
    """Name of the view that shows a table (`schema.name`) of a snapshot."""
    return f"v:{table}"


def register(cursor: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    cursor.register(f"arrow_{name}", table)
    cursor.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM arrow_{name}")
    cursor.unregister(f"arrow_{name}")


def lives_table(lives: Sequence[Life], node: Node) -> pa.Table:
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
    if rows:
        generations = {r["_generation"] for r in rows}
        generation = generations.pop() if len(generations) == 1 else None
        of_node = {"_life": 0, "_rank": None, "_local_rank": None, "_role": None, "_generation": generation}
        rows.append(rows[0] | of_node)
    tags = Table("", "", "", TAGS)
    return arrow_rows(("_life", *TAG_NAMES), tags, rows)


def in_flight_table(in_flight: Mapping[int, list[dict[str, Any]]]) -> pa.Table:
    rows = [{"_life": number} | row for number, found in in_flight.items() for row in found]
    return arrow_rows(("_life", *(c.name for c in COMM_COLLECTIVE.columns)), COMM_COLLECTIVE, rows)


def exit_table(lives: Sequence[Life]) -> pa.Table:
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
    return arrow_rows(("_life", *(c.name for c in PROCESS_EXIT.columns)), PROCESS_EXIT, rows)


def arrow_rows(names: Sequence[str], table: Table, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    arrays = []
    for name in names:
        column = table.column(name)
        kind = column.type if column is not None else "INTEGER"
        arrays.append(column_of([r[name] for r in rows], kind))
    return pa.table(arrays, names=list(names))


def column_of(values: list[Any], kind: str) -> pa.Array[Any]:
    found: pa.Array[Any] = pa.array(values, arrow_type(kind))
    return found


def _tag_list() -> str:
    return ", ".join(f"l.{quote(c.name)}" for c in TAGS)


def view_of(table: Table) -> str:
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


def rank_view() -> str:
    columns = ", ".join(f"d.{quote(c.name)}" for c in PROCESS_RANK.columns)
    return (
        f"CREATE TEMP VIEW {quote(view_name(PROCESS_RANK.full_name))} AS"
        f" SELECT {_tag_list()}, {columns} FROM rank_rows d JOIN lives l ON l._life = d._life"
    )
