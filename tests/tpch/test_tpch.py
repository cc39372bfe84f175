"""TPC-H: all 22 queries over 8 ranks on 3 nodes give what one DuckDB gives, and the share of the bytes that moved.

The data come from the public generator (`tpchgen-cli`), the queries follow the specification with its validation
parameters (18 and 11 with other thresholds, since at this scale the original ones leave nothing). Each test prints its
share.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from muster.federation.fanout import Budget
from muster.federation.merge import Merger
from muster.federation.service import Federation, StatementResult
from muster.federation.shards.base import Shard
from muster.federation.shards.local import LocalShard
from muster.model import JobView, RankInfo, RankStatus, ShardInfo
from muster.sql.plan import Statement
from muster.sql.planner import Planner
from oracle import Oracle, differences, with_tags

SCALE = "0.02"
NODES = ((0, 1, 2), (3, 4, 5), (6, 7))
RANKS = 8
FACTS = ("lineitem", "orders")
QUERIES = [(p.stem, p.read_text()) for p in sorted((Path(__file__).parent / "queries").glob("q*.sql"))]


def generator() -> Path:
    return Path(sys.executable).with_name("tpchgen-cli")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    folder = tmp_path_factory.mktemp("tpch")
    subprocess.run(
        [generator(), "parquet", "-s", SCALE, "--output-dir", folder], check=True, capture_output=True, timeout=120
    )
    return {p.stem: plain(pq.read_table(p)) for p in sorted(folder.glob("*.parquet"))}


def plain(table: pa.Table) -> pa.Table:
    """Text as text: the generator writes string views, which a probe never does."""
    types = [pa.string() if pa.types.is_string_view(f.type) else f.type for f in table.schema]
    return table.cast(pa.schema([(n, t) for n, t in zip(table.column_names, types, strict=True)]))


class Spread:
    """The tables on three nodes, the oracle over the same rows, and a federation between."""

    def __init__(self, tables: dict[str, pa.Table], *, everywhere: bool) -> None:
        parts: dict[int, dict[str, pa.Table]] = {rank: {} for rank in range(RANKS)}
        for name, rows in tables.items():
            spread = everywhere or name in FACTS
            owner = pc.bit_wise_and(pa.array(range(rows.num_rows), pa.int64()), RANKS - 1) if spread else None
            for rank, held in parts.items():
                whole = rows if rank == 0 else rows.slice(0, 0)
                mine = whole if owner is None else rows.filter(pc.equal(owner, rank))
                node = next(i for i, ranks in enumerate(NODES) if rank in ranks)
                held[f"tpch.{name}"] = with_tags(mine, rank, host=f"node{node}", node_rank=node)
        self.name = "all sharded" if everywhere else "facts sharded"
        self.whole = {n: pa.concat_tables([parts[r][n] for r in parts]) for n in parts[0]}
        self.oracle = Oracle(self.whole)
        shards = [
            LocalShard(f"node{i}", f"node{i}", ranks, {n: pa.concat_tables([parts[r][n] for r in ranks]) for n in parts[0]})
            for i, ranks in enumerate(NODES)
        ]
        by_id: dict[str, Shard] = {s.info.id: s for s in shards}
        self.merger = Merger()
        self.view = JobView("tpch", "g1", RANKS, ranks_of(shards), tuple(s.info for s in shards), datetime.now(UTC))

        def shard(info: ShardInfo) -> Shard:
            return by_id[info.id]

        self.federation = Federation(
            planner=Planner(), shards=shard, mergers={"diagnosis": self.merger}, at_once={"diagnosis": 1}
        )

    async def ask(self, sql: str) -> StatementResult:
        budget = Budget(rows=5_000_000, shard_bytes=1 << 30, total_bytes=1 << 30)
        found = await self.federation.run([Statement("q", sql)], self.view, deadline_s=120, budget=budget)
        return found["q"]

    def row_bytes(self, sql: str) -> int:
        """Bytes of all rows of the tables that a statement names: what shipping everything would move."""
        names = set(re.findall(r"tpch\.\w+", sql))
        return sum(self.whole[n].nbytes for n in names)


def ranks_of(shards: list[LocalShard]) -> tuple[RankInfo, ...]:
    return tuple(
        RankInfo(rank=r, generation="g1", node=s.info.id, host=s.info.host, status=RankStatus.RUNNING)
        for s in shards
        for r in s.info.ranks
    )


@pytest.fixture(scope="module", params=[True, False], ids=["every table sharded", "dimensions on one rank"])
def spread(request: pytest.FixtureRequest, tables: dict[str, pa.Table]) -> Iterator[Spread]:
    made = Spread(tables, everywhere=request.param)
    yield made
    made.merger.close()


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "sql"), QUERIES, ids=[name for name, _ in QUERIES])
async def test_tpch_query_equals_one_duckdb(
    spread: Spread, name: str, sql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    statement = Statement("q", sql)
    answer = await spread.ask(sql)
    assert answer.error is None, answer.error
    assert answer.table is not None
    assert answer.coverage.complete
    expected = spread.oracle.run(statement)
    assert expected.num_rows > 0, "a query without an answer shows nothing"
    assert [(c.name, c.type) for c in answer.columns] == [(c.name, c.type) for c in spread.oracle.describe(statement)]
    wrong = differences(answer.table, expected, answer.columns, ordered="ORDER BY" in sql)
    assert wrong is None, wrong
    share = answer.bytes_moved / spread.row_bytes(sql)
    with capsys.disabled():
        print(f"\n  {spread.name}, {name}: {answer.bytes_moved:>10,} bytes moved, {share:6.2%} of the rows'", end="")
    assert share <= 1


def test_all_22_queries_are_there() -> None:
    assert [name for name, _ in QUERIES] == [f"q{n:02d}" for n in range(1, 23)]
