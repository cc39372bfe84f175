"""A federated answer is the answer that one DuckDB gives over the rows of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from muster.sql.plan import Plan, Statement
from muster.sql.planner import Planner
from oracle import differences, named_params
from sql.jobs import Job, catalogue, make_job
from sql.local_run import LocalRun

QUERIES = Path(__file__).parent / "queries"
CATALOGUE = Path(__file__).parents[2] / "queries"
LAYOUT = ([0, 1], [], [2, 3], [4], [5])
PARAMS = {"step_window": 3, "k": 2, "missing": None, "q": 0.5, "op": "all_reduce"}


def statements() -> list[str]:
    return [
        text.strip() for path in sorted(QUERIES.glob("*.sql")) for text in path.read_text().split("\n\n") if text.strip()
    ]


@pytest.fixture(scope="module")
def job() -> Job:
    return make_job(5)


@pytest.fixture(scope="module")
def spread(job: Job) -> LocalRun:
    return job.spread(LAYOUT)


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner()


@pytest.fixture(scope="module")
def gatherer() -> Planner:
    return Planner(rules=())


def check(job: Job, run: LocalRun, planner: Planner, statement: Statement) -> Plan:
    plan = planner.plan([statement], catalogue())
    (merge,) = plan.merges
    answer = run.run(plan)[statement.id]
    expected = job.oracle.run(statement)
    described = job.oracle.describe(statement)
    assert [(c.name, c.type) for c in merge.columns] == [(c.name, c.type) for c in described]
    ordered = "order by" in statement.sql.lower().rpartition(")")[2]
    wrong = differences(answer, expected, merge.columns, ordered=ordered)
    assert wrong is None, f"{wrong}\n{statement.sql}\n{plan}"
    return plan


@pytest.mark.parametrize("sql", statements())
def test_answer_equals_one_duckdb(job: Job, spread: LocalRun, planner: Planner, gatherer: Planner, sql: str) -> None:
    statement = Statement("q", sql, PARAMS)
    check(job, spread, planner, statement)
    check(job, spread, gatherer, statement)


@pytest.mark.parametrize("sql", statements()[::4])
def test_coordinator_alone_is_rank_0(job: Job, spread: LocalRun, planner: Planner, sql: str) -> None:
    plan = planner.plan([Statement("q", sql, PARAMS, use_global=False)], catalogue())
    assert all(f.ranks is not None and f.ranks <= {0} for f in plan.fragments)
    check(job, spread, planner, Statement("q", sql, PARAMS, use_global=False))


@pytest.mark.parametrize("sql", statements()[1::5])
def test_no_shard_at_all_is_an_empty_table(planner: Planner, sql: str) -> None:
    nobody = make_job(1, ranks=1, empty=[0])
    check(nobody, LocalRun([], nobody.nodes), planner, Statement("q", sql, PARAMS))


def steps() -> list[tuple[str, str, dict[str, object]]]:
    """Every step of every diagnosis, with the defaults of its parameters."""
    found = []
    for path in sorted(CATALOGUE.glob("*.yaml")):
        diagnosis = yaml.safe_load(path.read_text())
        defaults = {name: p.get("default") for name, p in (diagnosis.get("parameters") or {}).items()}
        # one DuckDB has an information_schema of its own, which tells other things
        steps_ = [s for s in diagnosis.get("steps") or [] if "information_schema" not in s["sql"]]
        found += [(f"{diagnosis['id']}.{s['name']}", s["sql"], defaults) for s in steps_]
    return found


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize(("name", "sql", "defaults"), steps(), ids=[s[0] for s in steps()])
def test_step_of_a_diagnosis_equals_one_duckdb(
    planner: Planner, gatherer: Planner, name: str, sql: str, defaults: dict[str, object], seed: int
) -> None:
    large = make_job(seed, empty=(seed,), most=200)
    run = large.spread(LAYOUT)
    params = named_params(sql, defaults)
    for made in (planner, gatherer):
        check(large, run, made, Statement(name, sql, params))  # type: ignore[arg-type]
