"""A small job with awkward data: NULL, NaN, infinities, quotes, unicode, ranks without rows."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from muster.model import ColumnType
from muster.sql.plan import Catalogue
from muster.tables import NODES, REGISTRY, Table
from oracle import Oracle, with_tags
from sql.local_run import LocalRun, LocalShard

ARROW = {"BIGINT": pa.int64(), "DOUBLE": pa.float64(), "VARCHAR": pa.string(), "BOOLEAN": pa.bool_()}
TABLES = tuple(name for name, table in REGISTRY.items() if table.scope != "gateway")
OPS = ("all_reduce", "barrier", None, "it's", "ünï", "100%_\\")
TEXTS = (None, "", "a", 'b"c', "[0, 1]")
INTEGERS = (None, 0, 1, 2, 5, -3, 10**12)
FLOATS = (None, 0.1, 0.25, 1.5, math.nan, math.inf, -math.inf, -0.0, 3e10)


@dataclass(frozen=True)
class Job:
    """Rows of every rank, and the two ways to ask for them."""

    tables: Mapping[str, pa.Table]
    nodes: pa.Table
    per_rank: Mapping[int, Mapping[str, pa.Table]]
    oracle: Oracle

    def spread(self, layout: Sequence[Sequence[int]]) -> LocalRun:
        """The job with its ranks on shards; an empty list of ranks is a shard without rows."""
        shards = [
            LocalShard(
                {
                    name: pa.concat_tables([self.per_rank[r][name] for r in ranks]) if ranks else rows.slice(0, 0)
                    for name, rows in self.tables.items()
                }
            )
            for ranks in layout
        ]
        return LocalRun(shards, self.nodes)


def catalogue() -> Catalogue:
    return Catalogue({name: tuple(ColumnType(c.name, c.type) for c in REGISTRY[name].columns) for name in TABLES})


def make_job(seed: int, ranks: int = 6, *, empty: Sequence[int] = (2,), most: int = 30) -> Job:
    rng = random.Random(seed)
    per_rank = {}
    for rank in range(ranks):
        tables = {}
        for name in TABLES:
            count = 0 if rank in empty else 1 if name == "process.rank" else rng.randrange(3, most)
            rows = _rows(REGISTRY[name], count, rank, rng)
            tagged = with_tags(rows, rank, host=f"h{rank // 2}", node_rank=rank // 2)
            tables[name] = tagged if REGISTRY[name].scope == "rank" else _of_the_node(tagged)
        per_rank[rank] = tables
    whole = {name: pa.concat_tables([per_rank[r][name] for r in per_rank]) for name in TABLES}
    nodes = _nodes(ranks + 1)
    return Job(whole, nodes, per_rank, Oracle(whole, nodes))


def _of_the_node(rows: pa.Table) -> pa.Table:
    """Rows of a table of the node belong to none of its ranks."""
    for name in ("_rank", "_local_rank", "_role"):
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.nulls(rows.num_rows, rows.schema.field(place).type))
    return rows


def _rows(table: Table, count: int, rank: int, rng: random.Random) -> pa.Table:
    columns = {}
    for column in table.columns:
        if column.name in ("global_step", "local_step"):
            values: list[object] = [i // 4 for i in range(count)]
        elif column.name == "op":
            values = [rng.choice(OPS) for _ in range(count)]
        elif column.name == "rank":
            values = [rank] * count
        elif column.type == "BIGINT":
            values = [rng.choice(INTEGERS) for _ in range(count)]
        elif column.type == "DOUBLE":
            values = [rng.choice([*FLOATS, rng.random()]) for _ in range(count)]
        elif column.type == "BOOLEAN":
            values = [rng.choice([None, True, False]) for _ in range(count)]
        else:
            values = [rng.choice(TEXTS) for _ in range(count)]
        columns[column.name] = pa.array(values, ARROW[column.type])
    return pa.table(columns)


def _nodes(count: int) -> pa.Table:
    known: dict[str, list[object]] = {
        "rank": list(range(count)),
        "host": [f"h{r // 2}" for r in range(count)],
        "status": ["running"] * count,
    }
    return pa.table({c.name: pa.array(known.get(c.name, [None] * count), ARROW[c.type]) for c in NODES.columns})
