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
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from federation.in_process import InProcess
from muster.federation.fanout import Budget
from muster.federation.service import StatementResult
from muster.sql.plan import Statement
from oracle import Oracle, differences

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
    """The tables on three nodes, and one DuckDB with the same rows."""

    def __init__(self, tables: dict[str, pa.Table], *, everywhere: bool) -> None:
        self.name = "all sharded" if everywhere else "facts sharded"
        parts: dict[int, dict[str, pa.Table]] = {rank: {} for rank in range(RANKS)}
        for name, rows in tables.items():
            spread = everywhere or name in FACTS
            owner = pc.bit_wise_and(pa.array(range(rows.num_rows), pa.int64()), RANKS - 1) if spread else None
            for rank, held in parts.items():
                whole = rows if rank == 0 else rows.slice(0, 0)
                held[f"tpch.{name}"] = whole if owner is None else rows.filter(pc.equal(owner, rank))
        self.job = InProcess([{rank: parts[rank] for rank in ranks} for ranks in NODES])
        self.oracle = Oracle(self.job.tables)

    async def ask(self, sql: str) -> StatementResult:
        budget = Budget(rows=5_000_000, shard_bytes=1 << 30, total_bytes=1 << 30)
        return await self.job.ask(sql, budget=budget, deadline_s=120)

    def row_bytes(self, sql: str) -> int:
        """Bytes of all rows of the tables that a statement names: what shipping everything would move."""
        return sum(self.job.tables[n].nbytes for n in set(re.findall(r"tpch\.\w+", sql)))


@pytest.fixture(scope="module", params=[True, False], ids=["every table sharded", "dimensions on one rank"])
def spread(request: pytest.FixtureRequest, tables: dict[str, pa.Table]) -> Iterator[Spread]:
    made = Spread(tables, everywhere=request.param)
    yield made
    made.job.merger.close()


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
