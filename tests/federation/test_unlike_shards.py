"""Mixed reality: shards that differ in tables, columns, types, engine and settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from federation.in_process import InProcess
from muster.errors import OverBudget
from muster.federation.fanout import Budget
from muster.model import RankState
from muster.sql.plan import Route

T = "my.metrics"
pytestmark = pytest.mark.anyio


def rows(step: Sequence[int], **columns: Sequence[object] | pa.Array) -> pa.Table:
    return pa.table({"step": pa.array(step, pa.int64()), **columns})


@pytest.fixture
def job() -> Iterator[InProcess]:
    """Node 1 has an older table: no `loss`, a narrower `n`, `kind` as a number, the columns in another order, one more."""
    new = {"loss": [0.5, 1.5], "n": pa.array([1, 2], pa.int64()), "kind": ["a", "b"]}
    old = {"extra": [True, False], "kind": pa.array([7, 8], pa.int64()), "n": pa.array([3, 4], pa.int32())}
    made = InProcess(
        [
            {0: {T: rows([1, 2], **new), "my.other": rows([1])}, 1: {T: rows([1, 3], **new)}},
            {2: {T: rows([2, 5], **old)}},
            {3: {}},
        ]
    )
    yield made
    made.merger.close()


async def test_table_on_some_ranks_is_an_empty_relation_on_the_others(job: InProcess) -> None:
    found = await job.ask(f"SELECT count(*) FROM {T}")
    assert found.table is not None
    assert found.table.to_pylist() == [{"count_star()": 6}]
    assert found.coverage.states == {RankState.ANSWERED: 3, RankState.NO_TABLE: 1}
    assert [m.rank for m in found.coverage.missing] == [3]


async def test_join_with_a_table_that_a_shard_lacks_keeps_its_rows(job: InProcess) -> None:
    join = "LEFT JOIN my.other b ON a._rank = b._rank AND a.step = b.step"
    sql = f"SELECT a._rank, a.step, b.step FROM {T} a {join} ORDER BY ALL"
    plan = await job.plan(sql)
    assert [f.route for f in plan.fragments] == [Route.LOCAL]
    found = await job.ask(sql)
    assert found.table is not None
    answer = list(zip(*(found.table.column(i).to_pylist() for i in range(3)), strict=True))
    assert answer == [(0, 1, 1), (0, 2, None), (1, 1, None), (1, 3, None), (2, 2, None), (2, 5, None)]
    assert {m.rank: m.state for m in found.coverage.missing} == {2: RankState.NO_TABLE, 3: RankState.NO_TABLE}


async def test_column_that_a_shard_lacks_is_null_there_and_said(job: InProcess) -> None:
    found = await job.ask(f"SELECT _rank, sum(loss) FROM {T} GROUP BY _rank ORDER BY _rank")
    assert found.table is not None
    assert found.table.column(1).to_pylist() == [2.0, 2.0, None]
    assert found.coverage.notes == ("my.metrics.loss does not exist (NULL there) on rank 2",)
    assert found.coverage.answered == 3


async def test_column_that_nobody_asked_for_is_not_said(job: InProcess) -> None:
    assert (await job.ask(f"SELECT max(step) FROM {T}")).coverage.notes == ()


async def test_star_has_the_columns_of_the_job_in_one_order(job: InProcess) -> None:
    sql = f"SELECT *, row_number() OVER (PARTITION BY _rank ORDER BY step) AS i FROM {T} ORDER BY _rank, step"
    found = await job.ask(sql)
    assert found.table is not None
    assert found.table.column_names[-6:] == ["step", "loss", "n", "kind", "extra", "i"]
    last = found.table.to_pylist()[-1]
    assert (last["_rank"], last["loss"], last["n"], last["kind"], last["extra"], last["i"]) == (2, None, 4, None, False, 2)


async def test_narrower_type_is_widened(job: InProcess) -> None:
    found = await job.ask(f"SELECT sum(n) FROM {T}")
    assert found.table is not None
    assert found.table.column(0).to_pylist() == [1 + 2 + 1 + 2 + 3 + 4]
    assert found.coverage.notes == ()


async def test_column_of_an_unlike_type_is_null_there_and_said(job: InProcess) -> None:
    found = await job.ask(f"SELECT DISTINCT kind FROM {T} ORDER BY 1")
    assert found.table is not None
    assert found.table.column(0).to_pylist() == ["a", "b", None]
    assert found.coverage.notes == ("my.metrics.kind has another type (NULL there) on rank 2",)


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT avg(step), sum(step), max(step), count(*) FROM {T}",
        f"SELECT _rank, median(step) FROM {T} GROUP BY _rank ORDER BY 1",
        f"SELECT median(step), stddev(step) FROM {T} WHERE step > 1",
        f"SELECT step, count(DISTINCT _rank) FROM {T} GROUP BY step ORDER BY step",
        f"SELECT kind, count(*) FROM {T} WHERE kind >= 'a' AND step <> 2 GROUP BY kind ORDER BY kind",
    ],
)
async def test_answer_does_not_depend_on_how_alike_the_engines_are(job: InProcess, sql: str) -> None:
    expected = await job.rows(sql)
    job.claim("n0", engine="duckdb 1.4.2")
    older = await job.plan(sql)
    assert "EXPORT_STATE" not in " ".join(f.sql for f in older.fragments)
    assert await job.rows(sql) == expected
    job.claim("n1", profile={"TimeZone": "Europe/Berlin"})
    unlike = await job.plan(sql)
    assert {f.route for f in unlike.fragments} == {Route.GATHER}
    assert not any("kind >=" in f.sql for f in unlike.fragments)
    assert await job.rows(sql) == expected


async def test_explain_says_which_shard_is_in_the_way(job: InProcess) -> None:
    job.claim("n0", engine="duckdb 1.4.2")
    (fragment,) = (await job.plan(f"SELECT median(step) FROM {T}")).fragments
    assert fragment.route is Route.GATHER
    assert fragment.reason is not None
    assert "local:n0 runs duckdb 1.4.2" in fragment.reason


async def test_custom_table_of_agents_is_answered_by_each_rank(job: InProcess) -> None:
    (fragment,) = (await job.plan(f"SELECT _rank, list(step) FROM {T} GROUP BY _rank")).fragments
    assert fragment.route is Route.LOCAL


async def test_information_schema_tells_which_ranks_have_a_table(job: InProcess) -> None:
    sql = (
        "SELECT table_name, list(_rank ORDER BY _rank) FROM information_schema.tables WHERE table_schema = 'my' GROUP BY 1"
    )
    assert sorted(await job.rows(sql)) == [("metrics", [0, 1, 2]), ("other", [0, 1])]
    sql = f"""SELECT data_type, list(_rank ORDER BY _rank) FROM global.information_schema.columns
              WHERE table_schema || '.' || table_name = '{T}' AND column_name = 'kind' GROUP BY ALL ORDER BY ALL"""
    assert await job.rows(sql) == [("BIGINT", [2]), ("VARCHAR", [0, 1])]


async def test_no_shard_at_all_is_an_empty_job() -> None:
    nobody = InProcess([])
    assert await nobody.rows("SELECT count(*), sum(bytes) FROM python.comm_collective") == [(0, None)]
    nobody.merger.close()


async def test_too_many_rows_name_fragment_table_and_a_way_out(job: InProcess) -> None:
    found = await job.ask(f"SELECT list(step) FROM {T}", budget=Budget(rows=1))
    assert isinstance(found.error, OverBudget)
    assert T in found.error.detail
    assert "on 2 of" in found.error.detail
    assert found.error.hint is not None
    assert "aggregate" in found.error.hint
    assert str(found.error.extra["fragment"]).startswith("f_")


async def test_too_many_bytes_stop_the_fan_out_and_give_an_estimate(job: InProcess) -> None:
    with pytest.raises(OverBudget) as caught:
        await job.ask(f"SELECT list(step) FROM {T}", budget=Budget(total_bytes=8))
    assert T in caught.value.detail
    assert isinstance(caught.value.extra["estimate_bytes"], int)
    assert caught.value.extra["estimate_bytes"] > 8


@pytest.mark.parametrize(
    ("where", "asked"),
    [
        ("_rank = 1", {1}),
        ("_rank BETWEEN 1 AND 2", {1, 2}),
        ("_rank >= 2 AND step > 0", {2}),
        ("2 > _rank", {0, 1}),
        ("_host = 'h1'", {2}),
        ("_host IN ('h0', 'h9')", {0, 1}),
        ("_node_rank = 0 AND _rank <> 1", {0, 1}),
        ("_role = 'dp=1'", {0, 1, 2}),  # the roster does not know the roles
        ("_host = 'h1' OR _rank = 0", {0, 1, 2}),
        ("upper(_host) = 'H1'", {0, 1, 2}),
    ],
)
@pytest.mark.parametrize("shape", ["SELECT _rank, step FROM {} WHERE {}", "SELECT sum(step) FROM {} WHERE {}"])
async def test_filter_on_a_tag_asks_only_the_ranks_that_can_pass(
    job: InProcess, where: str, asked: set[int], shape: str
) -> None:
    found = await job.ask(shape.format(T, where))
    oracle = await job.rows(shape.format(f"(SELECT * FROM {T} LIMIT 100)", where))
    assert found.table is not None
    assert sorted(tuple(r.values()) for r in found.table.to_pylist()) == sorted(oracle)
    assert found.coverage.answered == len(asked)
    assert found.coverage.states.get(RankState.PRUNED, 0) >= 3 - len(asked)
