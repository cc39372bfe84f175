"""Generated statements over generated jobs: the federated answer is that of one DuckDB, on every route."""

from __future__ import annotations

from functools import cache

import duckdb
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from muster.sql.plan import Statement
from muster.sql.planner import Planner
from oracle import differences
from sql.grammar import statements
from sql.jobs import Job, catalogue, make_job
from sql.local_run import LocalRun

LAYOUTS = (
    ((0,), (1,), (2,), (3,), (4,), (5,)),
    ((0, 1), (), (2, 3), (4,), (5,)),
    ((0, 1, 2, 3, 4, 5),),
    ((5, 0), (1, 2, 3, 4)),
)


@cache
def job(seed: int) -> Job:
    return make_job(seed, empty=(seed % 6,))


@cache
def spread(seed: int, layout: int) -> LocalRun:
    return job(seed).spread(LAYOUTS[layout])


@pytest.fixture(scope="module")
def planners() -> tuple[Planner, ...]:
    return Planner(), Planner(rules=())


@given(statements, st.integers(0, 2), st.integers(0, len(LAYOUTS) - 1), st.booleans())
def test_generated_statement_equals_one_duckdb(
    planners: tuple[Planner, ...], sql: str, seed: int, layout: int, gather: bool
) -> None:
    statement = Statement("q", sql)
    try:
        expected = job(seed).oracle.run(statement)
    except duckdb.Error:
        assume(False)
    plan = planners[gather].plan([statement], catalogue())
    for fragment in plan.fragments:
        event(str(fragment.route))
    try:
        answer = spread(seed, layout).run(plan)["q"]
    except duckdb.Error:
        assert job(seed).oracle.fails_unoptimised(statement)
        return
    wrong = differences(answer, expected, plan.merges[0].columns)
    assert wrong is None, f"{wrong}\n{sql}\n{plan}"
