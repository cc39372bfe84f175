"""Generated statements over generated tables: whatever route is forced, the answer is that of one DuckDB."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from muster.sql.local import push_local
from muster.sql.partial import push_partial
from muster.sql.plan import Catalogue, Statement
from muster.sql.planner import Planner
from oracle import differences
from sql.schemas import Made, made, statements

SCHEMAS = 12
ROUTES = {
    "all": Planner(),
    "gather": Planner(rules=()),
    "local": Planner(rules=(push_local,)),
    "partial": Planner(rules=(push_partial,)),
}
many = settings(max_examples=settings().max_examples * 3)
"""In all some 700 statements in CI, each on up to five routes; fifty times that in the deep run."""
BLOCKS = 4


@st.composite
def cases(draw: st.DrawFn, block: int) -> tuple[Made, str, int]:
    job = made(block * SCHEMAS + draw(st.integers(0, SCHEMAS - 1)))
    return job, draw(statements(job)), draw(st.integers(0, len(job.runs) - 1))


def without_states(catalogue: Catalogue) -> Catalogue:
    return replace(catalogue, states=False, why_not="another version")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(BLOCKS))
@many
@given(data=st.data())
def test_every_route_gives_the_answer_of_one_duckdb(data: st.DataObject, block: int) -> None:
    job, sql, layout = data.draw(cases(block))
    statement = Statement("q", sql)
    try:
        expected = job.oracle.run(statement)
    except duckdb.Error:
        assume(False)
    described = [(c.name, c.type) for c in job.oracle.describe(statement)]
    seen = set()
    for route, planner in ROUTES.items():
        for catalogue in [job.catalogue, without_states(job.catalogue)] if route == "all" else [job.catalogue]:
            plan = planner.plan([statement], catalogue)
            text = str([f.sql for f in plan.fragments])
            if text in seen:
                continue
            seen.add(text)
            for fragment in plan.fragments:
                event(str(fragment.route))
            try:
                answer = job.runs[layout].run(plan)["q"]
            except duckdb.Error:
                assert job.oracle.fails_unoptimised(statement)
                continue
            assert [(c.name, c.type) for c in plan.merges[0].columns] == described
            wrong = differences(answer, expected, plan.merges[0].columns)
            assert wrong is None, f"{wrong}\n{sql}\n{route}\n{plan}"
