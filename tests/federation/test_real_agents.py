"""Uneven jobs over real agents: tables on some ranks only, an agent without rows, an agent without ranks, ranks that never
came, agents that are gone, no agent at all. The answer is that of one DuckDB with the rows that are there, and the coverage
says which are not."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest

from federation.real_agents import RealAgent, RealJob
from muster.federation.service import StatementResult
from muster.model import RankState
from muster.sql.plan import Exactness, OutputColumn, Statement
from oracle import Oracle, differences

pytestmark = pytest.mark.anyio
COMM, STEPS, SPANS, OWN = "python.comm_collective", "python.torch_step_timing", "python.trace_event", "my.scores"
TABLES = (COMM, STEPS, SPANS, OWN)
WORLD = 6

QUERIES = {
    "counts by rank": f"""SELECT _rank, count(*) AS n, max(global_step) AS last FROM global.{COMM}
        GROUP BY _rank ORDER BY _rank""",
    "ratio between ranks": f"""SELECT global_step, max(tokens) / min(tokens) AS ratio, count(DISTINCT _rank) AS ranks
        FROM global.{STEPS} GROUP BY global_step ORDER BY global_step""",
    "bounds": f"""WITH b AS (SELECT max(global_step) AS hi, max(global_step) - 5 AS lo FROM global.{STEPS})
        SELECT s._rank, sum(s.tokens) AS tokens FROM global.{STEPS} s CROSS JOIN b WHERE s.global_step BETWEEN b.lo AND b.hi
        GROUP BY s._rank ORDER BY s._rank""",
    "lag": f"""SELECT _rank, max(global_step) AS last FROM global.{STEPS} GROUP BY _rank
        HAVING max(global_step) < (SELECT max(global_step) - 3 FROM global.{STEPS}) ORDER BY _rank""",
    "spans joined": f"""SELECT s._rank, s.name, count(*) AS n, min(e.time - s.time) >= 0 AS forward FROM global.{SPANS} s
        JOIN global.{SPANS} e ON e.span_id = s.span_id AND e.record_type = 'span_end'
        WHERE s.record_type = 'span_start' GROUP BY s._rank, s.name ORDER BY s._rank, s.name""",
    "attributes": f"""SELECT _rank, max(CAST(attributes->>'$.batch' AS BIGINT)) AS batch FROM global.{SPANS}
        WHERE record_type = 'span_start' GROUP BY _rank ORDER BY _rank""",
    "roster": f"""SELECT n.rank, n.status, count(c.op) AS n FROM cluster.nodes n
        LEFT JOIN global.{COMM} c ON c._rank = n.rank GROUP BY n.rank, n.status ORDER BY n.rank""",
    "without rows": f"SELECT rank FROM cluster.nodes WHERE rank NOT IN (SELECT _rank FROM global.{STEPS}) ORDER BY rank",
    "own table": f"SELECT tag, count(*) AS n, median(score) AS mid FROM global.{OWN} GROUP BY tag ORDER BY tag",
    "own table by rank": f"SELECT _rank, arg_max(score, step) AS newest FROM global.{OWN} GROUP BY _rank ORDER BY _rank",
    "own table joined": f"""SELECT t._rank, count(*) AS steps, count(o.score) AS scored FROM global.{STEPS} t
        LEFT JOIN global.{OWN} o ON o._rank = t._rank AND o.step = t.global_step GROUP BY t._rank ORDER BY t._rank""",
    "own table over ranks": f"""SELECT t._rank, o._rank AS other, sum(o.score) AS s FROM global.{STEPS} t
        JOIN global.{OWN} o ON o.step = t.global_step AND o._rank <> t._rank GROUP BY ALL ORDER BY ALL""",
    "top": f"SELECT _rank, step, score FROM global.{OWN} ORDER BY score DESC, _rank LIMIT 5 OFFSET 2",
    "whole table": f"SELECT * FROM global.{OWN} ORDER BY _rank, step",
}
TRUTHS: dict[tuple[int, frozenset[str]], Oracle] = {}
EACH = pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealAgent]]:
    """n0 has a table of its own on both ranks, n1 on none; rank 4, alone on n2, has not done a step; n3 has no rank."""
    made = [RealAgent(f"n{i}", tmp_path_factory.mktemp(f"n{i}")) for i in range(4)]
    made[0].record(0, 20, [OWN])
    made[0].record(1, 20, [OWN])
    made[1].record(2, 12)
    made[1].record(3, 20)
    made[2].record(4, 0)
    yield made
    for agent in made:
        agent.stop()


@pytest.fixture(scope="module")
def registered(agents: list[RealAgent]) -> RealJob:
    return RealJob(agents, WORLD)


@pytest.fixture
def job(registered: RealJob) -> RealJob:
    return copy(registered)


def states(result: StatementResult) -> dict[RankState, set[int]]:
    found: dict[RankState, set[int]] = {}
    for missing in result.coverage.missing:
        found.setdefault(missing.state, set()).add(missing.rank)
    assert sum(result.coverage.states.values()) == WORLD
    return found


def truth_of(job: RealJob, without: frozenset[str]) -> Oracle:
    """What the agents held when they were first asked: what they serve has ended and changes no more."""
    key = (id(job.agents), without)
    if key not in TRUTHS:
        TRUTHS[key] = job.oracle(TABLES, without)
    return TRUTHS[key]


def check(result: StatementResult, job: RealJob, sql: str, *, without: frozenset[str] = frozenset()) -> None:
    assert result.error is None, result.error
    assert result.table is not None
    columns = [
        c if c.exactness is Exactness.EXACT else OutputColumn(c.name, c.type, Exactness.FLOAT) for c in result.columns
    ]
    truth = truth_of(job, without)
    described = truth.describe(Statement("q", sql))
    assert [(c.name, c.type) for c in columns] == [(c.name, c.type) for c in described]
    wrong = differences(result.table, truth.run(Statement("q", sql)), columns, ordered=True)
    assert wrong is None, wrong


@EACH
async def test_answer_is_that_of_one_duckdb_with_the_rows_there_are(job: RealJob, sql: str) -> None:
    check(await job.ask(sql), job, sql)


@EACH
async def test_without_an_agent_it_is_that_of_the_others(job: RealJob, sql: str, tmp_path: Path) -> None:
    gone = RealAgent("n0", tmp_path)
    gone.stop()
    shards = tuple(replace(s, addr=gone.addr) if s.id == "n0" else s for s in job.view.shards)
    job.view = replace(job.view, shards=shards)
    result = await job.ask(sql)
    check(result, job, sql, without=frozenset({"n0"}))
    assert states(result)[RankState.UNREACHABLE] == {0, 1}


async def test_coverage_tells_a_table_that_is_not_there_from_one_without_rows(job: RealJob) -> None:
    own, comm = await job.ask(f"SELECT count(*) FROM global.{OWN}"), await job.ask(f"SELECT count(*) FROM global.{COMM}")
    assert states(own) == {RankState.NO_TABLE: {2, 3, 4}, RankState.MISSING: {5}}
    assert states(comm) == {RankState.MISSING: {5}}
    assert comm.coverage.answered == 5


async def test_table_that_the_roster_does_not_know_of_yet_is_said_to_be_missing(job: RealJob) -> None:
    job.believe("n1", STEPS, None)
    sql = f"SELECT _rank, count(*) AS n FROM global.{STEPS} GROUP BY _rank ORDER BY _rank"
    result = await job.ask(sql)
    check(result, job, sql, without=frozenset({"n1"}))
    assert states(result)[RankState.NO_TABLE] == {2, 3}


@pytest.mark.parametrize("name", ["own table", "own table by rank", "own table joined", "whole table"])
async def test_table_that_the_roster_wrongly_believes_in_is_missing_too(job: RealJob, name: str) -> None:
    job.believe("n1", OWN, "n0")
    result = await job.ask(QUERIES[name])
    assert states(result)[RankState.NO_TABLE] >= {2, 3}
    gone = frozenset({"n1"}) if "joined" in name else frozenset()  # the rows that it would have been joined with go too
    check(result, job, QUERIES[name], without=gone)


async def test_table_that_nobody_has_is_an_error_that_names_it(job: RealJob) -> None:
    with pytest.raises(Exception, match=r"nowhere\.at_all"):
        _raise(await job.ask("SELECT count(*) FROM global.nowhere.at_all"))


@pytest.mark.parametrize("sql", [q for n, q in QUERIES.items() if not n.startswith(("own", "top", "whole"))])
async def test_no_agent_at_all_is_a_job_without_rows(job: RealJob, sql: str) -> None:
    alone = RealJob([], WORLD)
    result = await alone.ask(sql)
    truth = truth_of(job, frozenset(a.node for a in job.agents))
    nobody = truth.run(Statement("q", sql))
    assert result.error is None, result.error
    assert result.table is not None
    if "cluster.nodes" not in sql:
        assert differences(result.table, nobody, ordered=True) is None
    assert result.table.num_rows == nobody.num_rows
    assert states(result)[RankState.MISSING] == set(range(WORLD))


def _raise(result: StatementResult) -> None:
    if result.error is not None:
        raise result.error
