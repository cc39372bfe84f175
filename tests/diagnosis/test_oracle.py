"""Every step of job_health gives what the same SQL gives on one DuckDB that holds the rows of all ranks that answer."""

from __future__ import annotations

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import Cluster, History, checkpointed, dead, hanging, running, slowed, steady, whole
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.model import RankState, Status
from muster.sql.plan import Statement
from oracle import Oracle, differences, named_params


def straggling() -> History:
    history = running(6, own=slowed(steady(), [4], 15))
    history.roles = {r: f"dp={r // 2},pp={r % 2},tp=0" for r in range(6)}
    checkpointed(history, 0, 100, 20)
    checkpointed(history, 3, 110, 10)
    return history


def hung() -> History:
    history = running(6)
    hanging(history, 2, 20, state="T")
    return history


def dying() -> History:
    history = running(7, nodes=3, seed=3)
    dead(history, 5)
    history.vanish(6)
    return history


@pytest.mark.parametrize("down", [(), (1,), (0, 2)])
@pytest.mark.parametrize("make", [straggling, hung, dying, lambda: running(24, steps=260, seed=7)])
@pytest.mark.parametrize("use_global", [True, False])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate,
    catalogue: DiagnosisCatalogue,
    cluster: Cluster,
    make: object,
    down: tuple[int, ...],
    use_global: bool,
) -> None:
    history: History = make()  # type: ignore[operator]
    history.down = set(down)
    e = evaluate(history, use_global=use_global)
    oracle = Oracle(*whole(history, cluster.view(history)))
    values = e.parameters["job_health"]
    for step in catalogue.get("job_health").diagnosis.steps:
        got = next(s for s in e.steps if s.name == step.name)
        assert got.error is None, got.error
        used = named_params(step.sql, values)
        want = oracle.run(Statement(step.name, step.sql, used, use_global))
        assert got.table is not None
        assert differences(got.table, want, got.columns, ordered=True) is None, step.name
        assert [c.name for c in got.columns] == want.column_names


def test_a_node_that_does_not_answer_is_in_the_coverage_of_every_step(evaluate: Evaluate) -> None:
    history = running()
    history.down = {1}
    e = evaluate(history)
    assert e.status is Status.UNKNOWN
    for step in e.steps:
        assert step.coverage.states == {RankState.ANSWERED: 4, RankState.UNREACHABLE: 2}, step.name
        assert [m.rank for m in step.coverage.missing] == [2, 3]


def test_timing_rows_do_not_travel(evaluate: Evaluate) -> None:
    """Bytes grow with ranks and with steps, not with their product."""
    small = evaluate(running(24, steps=100)).bytes_moved
    longer = evaluate(running(24, steps=200)).bytes_moved
    wider = evaluate(running(48, steps=100)).bytes_moved
    assert longer < 2.2 * small
    assert wider < 2.2 * small
    rows = 24 * 200 * 12 * 8  # what 12 columns of every rank and step would be
    assert longer < rows / 2
