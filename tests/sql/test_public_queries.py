"""Queries of those who use one probe for each rank run unchanged, and give the answer of the whole job.

The statements are in `fixtures/public_queries.yaml`, the job in `public_job.py`. Each answer equals that of one DuckDB with
all rows. Beside it stands what a fan-out without a planner gives, every rank's own answer one below the other: for most
statements that is another answer, and this suite holds that it is, so that it shows what the planner is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
import yaml

from muster.federation.service import StatementResult
from muster.model import RankState
from muster.sql.plan import Exactness, OutputColumn, Statement
from muster.sql.planner import Planner
from oracle import differences
from sql.public_job import WORLD, Asked, PublicJob, make_public_job, shaken

Query = dict[str, Any]
QUERIES: list[Query] = yaml.safe_load((Path(__file__).parent / "fixtures/public_queries.yaml").read_text())
ALL = pytest.mark.parametrize("query", QUERIES, ids=[q["id"] for q in QUERIES])


@cache
def job() -> PublicJob:
    return make_public_job()


@cache
def expected(sql: str) -> pa.Table:
    return job().oracle.run(Statement("q", sql))


@pytest.fixture(scope="module", params=["three nodes", "a probe for each rank", "three nodes, nothing pushed"])
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    planner = Planner(rules=()) if "nothing" in request.param else Planner()
    made = Asked(job(), planner, per_rank="each rank" in request.param)
    yield made
    made.merger.close()


async def ask(asked: Asked, sql: str) -> StatementResult:
    found = await asked.federation.run([Statement("q", sql)], asked.view, deadline_s=60)
    return found["q"]


def comparable(columns: tuple[OutputColumn, ...], query: Query) -> list[OutputColumn]:
    """Every column counts, also where the planner cannot know that the data has no ties; `open` ones do not."""
    left_open = query.get("open", [])
    return [
        replace(c, exactness=Exactness.ARBITRARY)
        if left_open == "all" or c.name in left_open
        else c
        if c.exactness is Exactness.EXACT
        else replace(c, exactness=Exactness.FLOAT)
        for c in columns
    ]


def ordered(sql: str) -> bool:
    return sqlglot.parse_one(sql, dialect="duckdb").args.get("order") is not None


@ALL
@pytest.mark.anyio
async def test_answer_is_that_of_one_duckdb(asked: Asked, query: Query) -> None:
    answer = await ask(asked, query["sql"])
    assert answer.error is None, answer.error
    assert answer.table is not None
    described = job().oracle.describe(Statement("q", query["sql"].strip().rstrip(";")))
    assert [(c.name, c.type) for c in answer.columns] == [(c.name, c.type) for c in described]
    columns = comparable(answer.columns, query)
    wrong = differences(answer.table, expected(query["sql"]), columns, ordered=ordered(query["sql"]))
    assert wrong is None, wrong


@pytest.fixture(scope="module", params=[1])
def uneven(request: pytest.FixtureRequest) -> Iterator[tuple[PublicJob, Asked]]:
    made = shaken(job(), request.param)
    over = Asked(made, Planner(), per_rank=False)
    yield made, over
    over.merger.close()


@ALL
@pytest.mark.anyio
async def test_answer_is_that_of_one_duckdb_whatever_the_values(uneven: tuple[PublicJob, Asked], query: Query) -> None:
    made, over = uneven
    answer = await ask(over, query["sql"])
    statement = Statement("q", query["sql"])
    if answer.error is not None:
        with pytest.raises(duckdb.Error, match=re.escape(str(answer.error.detail)[:40])):
            made.oracle.run(statement)
        return
    assert answer.table is not None
    wrong = differences(answer.table, made.oracle.run(statement), answer.columns)
    assert wrong is None, wrong


REFUSED = {
    "a window inside an aggregate": (
        """WITH p AS (SELECT global_step, _rank, sum(duration_ms) AS ms FROM global.python.comm_collective GROUP BY ALL)
        SELECT _rank, sum(CASE WHEN ms = max(ms) OVER (PARTITION BY global_step) THEN 1 ELSE 0 END) / count(*) AS worst
        FROM p GROUP BY _rank""",
        "window",
    ),
    "a column of an older probe": ("SELECT step, max(allocated) FROM python.torch_trace GROUP BY step", "step"),
    "a column of another engine's table": ("SELECT avg(duration_ns) FROM python.trace_event", "duration_ns"),
    "a function of another engine": (
        "SELECT approx_percentile_cont(duration_ms, 0.95) FROM global.python.comm_collective",
        "approx_percentile_cont",
    ),
    "settings": ("SELECT * FROM information_schema.df_settings WHERE name LIKE 'probing.%'", "df_settings"),
    "the environment": ("SELECT name, value FROM process.envs", "process.envs"),
    "a change of settings": ("SET probing.torch.profiling = 'on'", "SELECT"),
    "two statements": ("SELECT 1 FROM cluster.nodes; SELECT 2 FROM cluster.nodes", "one"),
    "an unfinished statement": ("SELECT _rank, avg( FROM global.python.comm_collective", ""),
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_not_sql_over_the_job_is_the_users_error_and_named(asked: Asked, name: str) -> None:
    sql, named = REFUSED[name]
    answer = await ask(asked, sql)
    assert answer.error is not None
    assert answer.table is None
    assert 400 <= answer.error.status < 500
    assert named.lower() in f"{answer.error.detail} {answer.error.hint}".lower()


@ALL
def test_every_ranks_own_answer_is_another_one(query: Query) -> None:
    found = job().concatenated(query["sql"])
    wanted = expected(query["sql"])
    columns = [OutputColumn(f.name, "", Exactness.FLOAT) for f in wanted.schema]
    assert (differences(found, wanted, columns) is None) == (query["concatenation"] == "right")


@pytest.mark.parametrize("query", [q for q in QUERIES if "always_one" in q], ids=lambda q: q["id"])
def test_a_ratio_between_ranks_is_one_within_every_rank(query: Query) -> None:
    column = query["always_one"]
    alone = [v for v in job().concatenated(query["sql"]).column(column).to_pylist() if v is not None]
    assert set(alone) == {1.0}
    whole = [v for v in expected(query["sql"]).column(column).to_pylist() if v is not None]
    assert max(whole) > 1 or min(whole) < 1


@ALL
def test_a_statement_that_answers_nothing_shows_nothing(query: Query) -> None:
    assert expected(query["sql"]).num_rows > 0 or query["id"].startswith("exits_of")


def test_sixty_statements_and_more_of_which_most_need_a_planner() -> None:
    assert len({q["id"] for q in QUERIES}) == len(QUERIES) >= 60
    assert sum(q["concatenation"] == "wrong" for q in QUERIES) > len(QUERIES) / 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("table", "without"),
    [
        ("python.torch_trace", {6, 7}),
        ("nccl.proxy_ops", {3, 4, 5}),
        ("python.backtrace", {0, 1, 2}),
        ("python.comm_collective", set()),
    ],
)
async def test_ranks_without_the_table_are_named(asked: Asked, table: str, without: set[int]) -> None:
    answer = await ask(asked, f"SELECT count(*) AS n FROM global.{table}")
    assert answer.error is None, answer.error
    assert {m.rank for m in answer.coverage.missing if m.state is RankState.NO_TABLE} == without
    assert sum(answer.coverage.states.values()) == WORLD


@pytest.mark.anyio
async def test_asked_together_they_give_the_same_in_two_waves(asked: Asked) -> None:
    statements = [Statement(q["id"], q["sql"]) for q in QUERIES]
    found = await asked.federation.run(statements, asked.view, deadline_s=100)
    for query in QUERIES:
        answer = found[query["id"]]
        assert answer.error is None, f"{query['id']}: {answer.error}"
        assert answer.table is not None
        columns = comparable(answer.columns, query)
        wrong = differences(answer.table, expected(query["sql"]), columns, ordered=ordered(query["sql"]))
        assert wrong is None, f"{query['id']}: {wrong}"
    assert {a.waves for a in found.values()} == {2}
