"""First response: what can be concluded at once, what is at stake, and where to look next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import (
    NOW_NS,
    Cluster,
    History,
    checkpointed,
    dead,
    finished,
    hanging,
    running,
    slowed,
    steady,
    waiting,
)
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, named, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.model import Kind, Severity, Status

ID = ("sre_triage",)


def watched(history: History) -> History:
    history.rows |= {"process.kmsg": {}, "net.tcp": {}, "gpu.utilization": {}}
    for rank in range(history.world):
        connection(history, rank, 100.0 + rank)
    for node in range(history.nodes):
        rows = [{"ts": NOW_NS // 1000 - i, "device_id": 0, "ecc_uncorrected": 0} for i in range(5)]
        history.rows["gpu.utilization"][node] = rows
    checkpointed(history, 0, 100, 4.0)
    return history


def connection(history: History, rank: int, busy_ms: float) -> None:
    rows = history.rows["net.tcp"].setdefault(rank, [])
    for i, peer in enumerate(("10.0.0.1", "10.0.0.2")):
        for age in (1, 2):
            rows.append({"ts": NOW_NS - age, "peer_addr": peer, "busy_ms": busy_ms / age + i, "retrans": 1, "rtt_us": 50.0})


def kernel(history: History, node: int, message: str) -> None:
    history.rows["process.kmsg"].setdefault(node, []).append({"timestamp": NOW_NS // 1000, "message": message})


def test_a_healthy_job_passes_and_says_what_is_at_stake(evaluate: Evaluate) -> None:
    e = evaluate(watched(running()), ids=ID)
    assert (e.status, loud(e), e.waves) == (Status.PASS, [], 2)
    assert {c.status for c in e.checks} == {Status.PASS}
    stake = named(e, "at_stake")
    assert stake.observed == 19
    assert "step 100" in stake.message
    assert e.facts["sre_triage.stake"]["steps"] == 19


def kill(history: History) -> None:
    dead(history, 4)


def hang(history: History) -> None:
    hanging(history, 3, 100)


def stop(history: History) -> None:
    hanging(history, 3, 20, state="T")


def leave(history: History) -> None:
    waiting(history, [0, 1, 2, 3, 4], 100)
    finished(history, [5])


def disagree(history: History) -> None:
    waiting(history, [0, 1, 2, 4, 5], 100)
    waiting(history, [3], 100, op="broadcast")


def xid(history: History) -> None:
    kernel(history, 1, "NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.")


def throttle(history: History) -> None:
    for row in history.rows["gpu.utilization"][1]:
        row["throttle_reasons"] = "hw_slowdown"


@pytest.mark.parametrize(
    ("fault", "id", "ranks", "next"),
    [
        (kill, "dead", (), ("crash_triage", "node_hardware")), (hang, "not_moving", (3,), ("training_hang",)),
        (stop, "not_moving", (3,), ("training_hang",)), (leave, "not_moving", (), ("training_hang",)),
        (disagree, "not_moving", (), ("training_hang",)), (xid, "faults", (), ("node_hardware",)),
        (throttle, "devices_slowed", (), ("node_hardware",)),
    ],
)  # fmt: skip
def test_each_kind_of_trouble_calls_for_its_diagnosis(
    evaluate: Evaluate, fault: Callable[[History], None], id: str, ranks: tuple[int, ...], next: tuple[str, ...]
) -> None:
    history = watched(running())
    fault(history)
    e = evaluate(history, ids=ID)
    found = only(e)
    assert (found.id, found.ranks) == (id, ranks)
    assert set(next) <= set(found.next)
    assert e.drain_candidates == ()


def test_a_slow_rank_calls_for_the_diagnoses_of_slowness(evaluate: Evaluate, catalogue: DiagnosisCatalogue) -> None:
    e = evaluate(watched(running(own=slowed(steady(), [2], 15))), ids=ID)
    found = only(e)
    assert (found.id, found.ranks, found.kind) == ("uneven", (2,), Kind.WORKER)
    assert found.next[0] == "persistent_straggler" or "persistent_straggler" not in catalogue.ids


def test_ranks_at_different_operations_call_for_the_sequence(evaluate: Evaluate) -> None:
    history = watched(running())
    hanging(history, 3, 100)
    history.now(3)["last_seq"] -= 1
    found = named(evaluate(history, ids=ID), "misaligned")
    assert (found.severity, found.observed) == (Severity.INFO, 1)


def test_a_rank_whose_network_is_busy_is_named_for_information(evaluate: Evaluate) -> None:
    history = watched(running())
    connection(history, 3, 3192.0)
    e = evaluate(history, ids=ID)
    assert (e.status, named(e, "connection_busy").ranks) == (Status.PASS, (3,))


def test_blocked_threads_are_told(evaluate: Evaluate) -> None:
    history = watched(running())
    history.rows["cpu.utilization"][2] = [{"scope": "thread", "ts": 5, "tid": 7, "state": "D", "wchan": "nfs_wait"}]
    found = named(evaluate(history, ids=ID), "blocked")
    assert (found.ranks, found.severity) == ((2,), Severity.INFO)
    assert "nfs_wait" in found.message


def test_before_the_first_step_it_calls_for_the_diagnosis_of_the_start(evaluate: Evaluate) -> None:
    e = evaluate(watched(running(steps=0)), ids=ID)
    assert (e.status, check(e, "moving").gate) == (Status.UNKNOWN, "starting")
    assert named(e, "not_started").next == ("startup_stall",)


@pytest.mark.parametrize("phase", ["checkpoint", "eval"])
def test_a_long_phase_that_is_annotated_is_silent(evaluate: Evaluate, phase: str) -> None:
    history = watched(running())
    waiting(history, [1, 2, 3, 4, 5], 300)
    history.now(0).update(age_s=300.0, open_phase=phase)
    assert loud(evaluate(history, ids=ID)) == []


def test_what_is_not_recorded_is_unknown_check_by_check(evaluate: Evaluate) -> None:
    e = evaluate(running(), ids=ID)
    gates = {c.name: c.gate for c in e.checks if c.gate}
    assert gates == {
        "hardware": "not_recorded", "devices": "not_recorded", "network": "not_recorded", "checkpoint": "no_checkpoint",
    }  # fmt: skip
    assert all(s.error is None for s in e.steps)


def test_nobody_answers(evaluate: Evaluate) -> None:
    history = watched(running())
    history.down = {0, 1, 2}
    e = evaluate(history, ids=ID)
    assert (e.status, check(e, "alive").gate) == (Status.UNKNOWN, "no_rows")


def test_the_texts_exist_in_chinese(evaluate: Evaluate) -> None:
    history = watched(running())
    hanging(history, 3, 100)
    assert "没有进展" in only(evaluate(history, ids=ID, lang="zh")).message


@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, down: tuple[int, ...]
) -> None:
    history = watched(running())
    xid(history)
    rows: Any = history.rows["cpu.utilization"]
    rows[0] = [{"scope": "thread", "ts": t, "tid": i, "state": "D", "wchan": "x"} for t in range(3) for i in range(3)]
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
