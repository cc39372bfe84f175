"""Rows of one table by the rank that owns them, in the types of the known tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from muster.engine import arrow_type, open_engine
from muster.errors import BadRequest
from muster.model import ColumnType
from muster.tables import REGISTRY, TAG_NAMES, TAGS

MAX_WORLD = 1 << 17
TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}\.[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(slots=True)
class Owned:
    """Rows of a table by the rank that owns them; None for those of a node."""

    by_rank: dict[int | None, pa.Table] = field(default_factory=dict)
    columns: tuple[ColumnType, ...] = ()
    tags: dict[int, dict[str, Any]] = field(default_factory=dict)
    world_size: int = 0
    newest_ns: int | None = None

    @classmethod
    def of(cls, name: str, table: pa.Table) -> Owned:
        if not TABLE.fullmatch(name):
            raise BadRequest(f"{name[:80]!r} is no name of a table.", hint="Tables are named schema.table.")
        known = REGISTRY.get(name)
        owner = next((c for c in ("_rank", "rank") if c in table.column_names), None)
        if owner is None and (known is None or known.scope == "rank"):
            raise BadRequest(f"{name} has no column rank: nobody knows whose its rows are.", hint="Add a column rank.")
        ranks = ranks_of(name, table, owner)
        bare = table.select([c for c in table.column_names if c not in TAG_NAMES])
        rows = typed(name, bare)
        found = cls(columns=_column_types(rows))
        places: dict[int | None, list[int]] = {}
        for place, rank in enumerate(ranks):
            places.setdefault(rank, []).append(place)
        found.by_rank = {rank: rows.take(pa.array(mine, pa.int64())) for rank, mine in places.items()}
        found.tags = _tags_of(table, ranks)
        if known is not None and "world_size" in rows.column_names and rows.num_rows:
            found.world_size = pc.max(rows.column("world_size")).as_py() or 0
        if known is not None and known.key_time is not None and known.key_time[0] in rows.column_names and rows.num_rows:
            newest = pc.max(rows.column(known.key_time[0])).as_py()
            found.newest_ns = None if newest is None else newest * known.key_time[1]
        return found


def _tags_of(table: pa.Table, ranks: Sequence[int | None]) -> dict[int, dict[str, Any]]:
    """What the tag columns of a table, if it has them, say of each rank (by its last row)."""
    named = {"_host": "host", "_node_rank": "group_rank", "_local_rank": "local_rank", "_role": "role"}
    named["_generation"] = "generation"
    there = {tag: name for tag, name in named.items() if tag in table.column_names}
    last = {rank: place for place, rank in enumerate(ranks) if rank is not None} if there else {}
    kinds = {c.name: arrow_type(c.type) for c in TAGS}
    found: dict[int, dict[str, Any]] = {}
    for rank, place in last.items():
        values = {t: table.column(t)[place] for t in there}
        found[rank] = {there[t]: v.as_py() for t, v in values.items() if v.is_valid and v.type == kinds[t]}
    return found


def ranks_of(name: str, table: pa.Table, owner: str | None) -> list[int | None]:
    if owner is None:
        return [None] * table.num_rows
    column = table.column(owner)
    known = REGISTRY.get(name)
    if not pa.types.is_integer(column.type):
        raise BadRequest(f"{name}: column {owner} is {column.type}, not whole numbers.", hint="Write ranks as integers.")
    ranks: list[int | None] = column.to_pylist()
    if None in ranks and (known is None or known.scope == "rank"):
        raise BadRequest(f"{name} has rows whose {owner} is NULL.", hint="Every row of a rank needs its rank.")
    wrong = next((r for r in ranks if r is not None and not 0 <= r < MAX_WORLD), None)
    if wrong is not None:
        raise BadRequest(f"{name} has a row of rank {wrong}.", hint=f"Ranks are 0 to {MAX_WORLD - 1}.")
    return ranks


def typed(name: str, rows: pa.Table) -> pa.Table:
    """Known columns in their types; columns without a type become texts."""
    known = REGISTRY.get(name)
    arrays = []
    for column in rows.column_names:
        values = rows.column(column)
        wanted = known.column(column) if known is not None else None
        kind = arrow_type(wanted.type) if wanted is not None else None
        if kind is None and pa.types.is_null(values.type):
            kind = pa.string()
        try:
            arrays.append(values if kind is None or values.type == kind else values.cast(kind))
        except pa.ArrowException as error:
            raise BadRequest(
                f"{name}: column {column} ({values.type}) does not become {wanted.type if wanted else kind}:"
                f" {str(error).splitlines()[0]}",
                hint="The columns of known tables are those of `muster jobs JOB --tables`.",
            ) from None
    return pa.table(arrays, names=rows.column_names)


def _column_types(rows: pa.Table) -> tuple[ColumnType, ...]:
    """Columns with their DuckDB types, tags first."""
    with open_engine(threads=1) as database, database.cursor() as cursor:
        cursor.register("incoming", rows.schema.empty_table())
        described = cursor.execute("DESCRIBE SELECT * FROM incoming").fetchall()
        own = tuple(ColumnType(r[0], r[1]) for r in described)
    return (*(ColumnType(c.name, c.type) for c in TAGS), *own)
