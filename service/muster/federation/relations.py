"""The gateway's own tables as relations: the roster, and `information_schema` of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from muster.engine import arrow_type
from muster.federation.nodes import cluster_nodes
from muster.model import ColumnType, JobView, RankInfo
from muster.tables import GATEWAY_TABLES, INFORMATION_COLUMNS, INFORMATION_TABLES, NODES, TAGS, Table


def relation_of(name: str, view: JobView) -> pa.Table:
    """The rows of one of `tables.GATEWAY_TABLES` for a job."""
    makers: Mapping[str, Callable[[JobView], pa.Table]] = {
        NODES.full_name: cluster_nodes,
        INFORMATION_TABLES.full_name: information_tables,
        INFORMATION_COLUMNS.full_name: information_columns,
    }
    return makers[name](view)


def information_tables(view: JobView) -> pa.Table:
    """One row for every table and rank that has it; the gateway's own tables belong to no rank."""
    return _table(INFORMATION_TABLES, [(*tags, *_names(name), "BASE TABLE") for tags, name, _ in _held(view)])


def information_columns(view: JobView) -> pa.Table:
    """One row for every column of every table and rank that has it, tags included."""
    rows = [
        (*tags, *_names(name), column.name, place, "YES", column.type)
        for tags, name, columns in _held(view)
        for place, column in enumerate(columns, 1)
    ]
    return _table(INFORMATION_COLUMNS, rows)


def _held(view: JobView) -> Iterator[tuple[tuple[Any, ...], str, Sequence[ColumnType]]]:
    """The tags of a rank, a table that it has, and the columns of that table there."""
    ranks = {r.rank: r for r in view.ranks}
    for shard in view.shards:
        for rank in shard.ranks:
            tags = _tags(ranks[rank]) if rank in ranks else (*[None] * 2, rank, *[None] * 4)
            for name in sorted(shard.tables or {}):
                yield tags, name, (shard.tables or {})[name]
    for name, table in GATEWAY_TABLES.items():
        yield (None,) * len(TAGS), name, [ColumnType(c.name, c.type) for c in table.columns]


def _tags(rank: RankInfo) -> tuple[Any, ...]:
    return (rank.host, rank.addr, rank.rank, rank.node_rank, rank.local_rank, rank.role, rank.generation)


def _names(name: str) -> tuple[str, str, str]:
    schema, _, table = name.partition(".")
    return "global", schema, table


def _table(table: Table, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(table.columns)
    arrays = [pa.array(v, arrow_type(c.type)) for c, v in zip(table.columns, columns, strict=True)]
    return pa.table(arrays, names=[c.name for c in table.columns])
