"""What is recorded and how it stands; none of it is a fault of the job."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import NOW_NS, Cluster, History, running
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, named, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.model import Kind, Severity, Status

ID = ("health_overview",)


def sampled(**history: Any) -> History:
    made = running(**history)
    for rank in range(made.world):
        made.rows["cpu.utilization"][rank] = [
            {"scope": "process", "ts": NOW_NS // 1000 - i, "cpu_total_pct": 90.0 + i, "rss_kb": 1000, "tid": 1}
            for i in range(3)
        ]
    return made


def shadowed(history: History, cost: float) -> None:
    """Every fifth step ran without hooks and was that much faster."""
    for rows in history.rows["python.torch_step_timing"].values():
        for row in rows:
            if row["local_step"] % 5 == 0:
                row.update(is_shadow=1, step_duration_sec=row["step_duration_sec"] / cost)


def test_it_lists_what_is_recorded_and_passes(evaluate: Evaluate) -> None:
    e = evaluate(sampled(), ids=ID)
    assert (e.status, loud(e), e.waves) == (Status.PASS, [], 1)
    assert "python.torch_step_timing" in named(e, "recorded").message
    assert "6 of 6 ranks on 3 hosts answer" in named(e, "overview").message
    assert "newest step 119" in named(e, "overview").message
    assert check(e, "cpu").observed == 90


def test_devices_are_shown_where_they_are_sampled(evaluate: Evaluate) -> None:
    history = sampled()
    history.rows["gpu.utilization"] = {
        n: [{"ts": t, "device_id": 0, "gpu_util_pct": 10.0 * t, "mem_used_pct": 90.0 + n} for t in (1, 2, 3)]
        for n in range(3)
    }
    e = evaluate(history, ids=ID)
    assert check(e, "gpu").observed == 30
    assert "3 devices at 30 %, fullest 92 %" in named(e, "overview").message


def test_without_devices_their_check_is_unknown(evaluate: Evaluate) -> None:
    found = check(evaluate(sampled(), ids=ID), "gpu")
    assert (found.status, found.gate) == (Status.UNKNOWN, "not_recorded")


def test_ranks_of_which_nothing_is_recorded_are_unknown_and_named(evaluate: Evaluate) -> None:
    history = sampled()
    history.rows["python.torch_step_timing"][4] = []
    history.now(4).update(last_global_step=None, last_local_step=None, last_op=None, last_seq=None, step_source=None)
    e = evaluate(history, ids=ID)
    assert (e.status, only(e).id, only(e).ranks) == (Status.UNKNOWN, "nothing_recorded", (4,))
    assert "MUSTER_COLLECT" in only(e).message


def test_gaps_are_told(evaluate: Evaluate) -> None:
    history = sampled()
    history.now(2).update(rows_lost=7, recorder_errors=1)
    found = named(evaluate(history, ids=ID), "gaps")
    assert (found.ranks, found.severity, found.observed) == ((2,), Severity.INFO, 7)


@pytest.mark.parametrize(("cost", "status"), [(1.001, Status.PASS), (1.2, Status.WARN)])
def test_the_cost_of_the_probe_is_measured_by_steps_without_it(evaluate: Evaluate, cost: float, status: Status) -> None:
    history = sampled(steps=200)
    shadowed(history, cost)
    e = evaluate(history, ids=ID)
    assert e.status is status
    observed = check(e, "overhead").observed
    assert isinstance(observed, float)
    assert observed == pytest.approx(cost, abs=0.02)


def test_without_such_steps_the_cost_is_unknown(evaluate: Evaluate) -> None:
    assert check(evaluate(sampled(), ids=ID), "overhead").gate == "no_shadow"


def test_a_node_that_does_not_answer_is_unknown(evaluate: Evaluate) -> None:
    history = sampled()
    history.down = {1}
    e = evaluate(history, ids=ID)
    assert (e.status, only(e).id, only(e).ranks, only(e).kind) == (Status.UNKNOWN, "unanswered", (2, 3), Kind.COVERAGE)


def test_nobody_answers(evaluate: Evaluate) -> None:
    history = sampled()
    history.down = {0, 1, 2}
    e = evaluate(history, ids=ID)
    assert (e.status, check(e, "nodes").gate) == (Status.UNKNOWN, "no_rows")


def test_a_table_that_only_some_ranks_have_is_told(evaluate: Evaluate, cluster: Cluster) -> None:
    history = sampled()
    history.rows["gpu.utilization"] = {0: []}
    history.lacking = {"gpu.utilization": {1, 2}}
    found = named(evaluate(history, ids=ID), "partly_recorded")
    assert found.ranks == (2, 3, 4, 5)
    assert "gpu.utilization" in found.message


def test_the_texts_exist_in_chinese(evaluate: Evaluate) -> None:
    assert "已记录" in named(evaluate(sampled(), ids=ID, lang="zh"), "recorded").message


@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, down: tuple[int, ...]
) -> None:
    history = sampled()
    shadowed(history, 1.1)
    history.rows["gpu.utilization"] = {
        n: [{"ts": t, "device_id": d, "power_w": 1.0 * t} for t in range(5) for d in range(2)] for n in range(3)
    }
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
