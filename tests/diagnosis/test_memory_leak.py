"""memory_leak: growth without end is told from sawtooth, plateau and warm-up, on devices and in processes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import NOW_NS, Cluster, History, running
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.diagnosis.evaluation import Evaluation
from muster.model import Kind, Severity, Status

ID = ["memory_leak"]
Curve = Callable[[float], float]  # from the share of the window (0 to 1) to GiB above 20 GiB
GIB = 1073.741824  # MB

FLAT: Curve = lambda x: 0.0  # noqa: E731
LEAK: Curve = lambda x: 6 * x  # noqa: E731


def device(
    curves: dict[int, Curve], *, points: int = 200, every: int = 10, limit_gib: float = 80, step_s: float = 1.0
) -> History:
    """Sampled steps of 6 ranks on 3 nodes; ranks without a curve are flat."""
    history, rng = running(6, steps=30), random.Random(3)
    history.rows["python.torch_trace"] = {
        r: [
            {
                "local_step": 25 + i * every, "global_step": 25 + i * every, "seq": 9, "rank": r, "stage": "post step",
                "allocated": (20 + curves.get(r, FLAT)(i / max(1, points - 1))) * GIB + rng.gauss(0, 20),
            }
            for i in range(points)
        ]
        for r in range(6)
    }  # fmt: skip
    history.rows["gpu.devices"] = {
        n: [{"device_id": d, "total_bytes": int(limit_gib * 2**30)} for d in range(2)] for n in range(3)
    }
    for rank in range(6):
        history.now(rank)["median_step_s"] = step_s
    return history


def process(curves: dict[int, Curve], *, points: int = 400, hours: float = 4.0) -> History:
    history, rng = running(6, steps=30), random.Random(4)
    start = NOW_NS // 1000 - int(hours * 3.6e9)
    history.rows["cpu.utilization"] = {
        r: [
            {
                "ts": start + int(hours * 3.6e9 * i / points), "scope": "process", "tid": 1000 + r,
                "rss_kb": int((4 + curves.get(r, FLAT)(i / points)) * 2**20 + rng.gauss(0, 5000)),
            }
            for i in range(points)
        ]
        for r in range(6)
    }  # fmt: skip
    return history


def blamed(e: Evaluation) -> set[int]:
    return {r for f in e.findings for r in f.ranks}


def sawtooth(teeth: float, height: float = 8) -> Curve:
    return lambda x: height * ((x * teeth) % 1.0)


def test_a_leak_names_rank_host_slope_and_time_to_the_limit(evaluate: Evaluate) -> None:
    found = only(evaluate(device({4: LEAK}), ids=ID))
    assert (found.id, found.kind, found.ranks, found.hosts) == ("device_leak", Kind.MEMORY, (4,), ("n2",))
    assert found.severity is Severity.WARN
    assert found.observed == pytest.approx(6, rel=0.05)
    assert "so do 1 of 6 ranks" in found.message
    # 6 GiB in 1990 steps of 1 s; 54 GiB to the limit
    assert "10.8 GiB an hour" in found.message or "10.9 GiB an hour" in found.message
    assert "to the limit of the device: 4.98 h" in found.message


def test_a_limit_within_the_hour_is_a_failure(evaluate: Evaluate) -> None:
    found = only(evaluate(device({4: LEAK}, limit_gib=32), ids=ID))
    assert (found.severity, found.ranks) == (Severity.FAIL, (4,))


def test_small_growth_counts_where_the_limit_is_near(evaluate: Evaluate) -> None:
    curve: Curve = lambda x: 0.5 * x  # noqa: E731
    assert loud(evaluate(device({4: curve}), ids=ID)) == []
    assert only(evaluate(device({4: curve}, limit_gib=20.8), ids=ID)).severity is Severity.FAIL


def test_without_a_recorded_limit_growth_alone_counts(evaluate: Evaluate) -> None:
    history = device({4: LEAK})
    del history.rows["gpu.devices"]
    found = only(evaluate(history, ids=ID))
    assert (found.ranks, found.severity) == ((4,), Severity.WARN)
    assert "to the limit of the device: ?" in found.message


@pytest.mark.parametrize(("limit_gib", "severity"), [(32, Severity.FAIL), (80, Severity.WARN)])
def test_of_devices_of_unlike_size_the_ranks_own_counts(evaluate: Evaluate, limit_gib: int, severity: Severity) -> None:
    """Local ranks of this history are its ranks: rank 1 has device 1 of node 0."""
    history = device({1: LEAK})
    history.rows["gpu.devices"][0][1]["total_bytes"] = limit_gib * 2**30
    history.rows["gpu.devices"][0][0]["total_bytes"] = 40 * 2**30
    assert only(evaluate(history, ids=ID)).severity is severity


def test_a_leak_of_all_ranks_is_the_codes(evaluate: Evaluate) -> None:
    found = only(evaluate(device(dict.fromkeys(range(6), LEAK)), ids=ID))
    assert found.ranks == tuple(range(6))
    assert "so do 6 of 6 ranks" in found.message


def test_a_leak_under_a_sawtooth_is_found(evaluate: Evaluate) -> None:
    saw = sawtooth(20)
    assert only(evaluate(device({1: lambda x: saw(x) + 6 * x}), ids=ID)).ranks == (1,)


def test_a_leak_that_begins_in_the_middle_is_found(evaluate: Evaluate) -> None:
    assert only(evaluate(device({1: lambda x: 12 * max(0.0, x - 0.4)}), ids=ID)).ranks == (1,)


@pytest.mark.parametrize("teeth", [2.9, 3.4, 5.8, 7.5, 13, 40])
@pytest.mark.parametrize("make", [device, process])
def test_a_sawtooth_is_no_leak(evaluate: Evaluate, teeth: float, make: Callable[[dict[int, Curve]], History]) -> None:
    assert loud(evaluate(make({2: sawtooth(teeth)}), ids=ID)) == []


@pytest.mark.parametrize(
    "curve",
    [
        lambda x: 10 * (1 - math.exp(-x * 5)),
        lambda x: 10 * (1 - math.exp(-x * 12)),
        lambda x: min(10.0, 25 * x),
        lambda x: 10.0 if x > 0.3 else 0.0,  # one step up
        lambda x: 10.0 if x > 0.7 else 0.0,
        lambda x: -5 * x,
        FLAT,
    ],
)
@pytest.mark.parametrize("make", [device, process])
def test_growth_that_levels_off_is_no_leak(
    evaluate: Evaluate, curve: Curve, make: Callable[[dict[int, Curve]], History]
) -> None:
    assert loud(evaluate(make({2: curve}), ids=ID)) == []


def test_warm_up_is_not_looked_at(evaluate: Evaluate) -> None:
    """It grows by 10 GiB in the first 20 steps and stays."""
    history = device({}, points=60, every=10)
    for rank in range(6):
        history.rows["python.torch_trace"][rank] += [
            {"local_step": i, "seq": 9, "stage": "post step", "allocated": i * 0.5 * GIB} for i in range(1, 21)
        ]
    assert evaluate(history, ids=ID).findings == ()


def test_memory_within_a_step_does_not_count(evaluate: Evaluate) -> None:
    history = device({})
    for rows in history.rows["python.torch_trace"].values():
        rows += [r | {"stage": "post forward", "allocated": 40 * GIB + r["local_step"] * 10} for r in list(rows)]
    assert loud(evaluate(history, ids=ID)) == []


def test_a_growing_process_is_named(evaluate: Evaluate) -> None:
    found = only(evaluate(process({3: LEAK}), ids=ID))
    assert (found.id, found.ranks, found.kind) == ("process_leak", (3,), Kind.MEMORY)
    assert found.observed == pytest.approx(6, rel=0.1)


def test_threads_are_not_processes(evaluate: Evaluate) -> None:
    history = process({})
    for rows in history.rows["cpu.utilization"].values():
        rows += [r | {"scope": "thread", "rss_kb": i << 20} for i, r in enumerate(list(rows))]
    assert loud(evaluate(history, ids=ID)) == []


def few(n: int) -> Callable[[], History]:
    return lambda: device({1: LEAK}, points=n)


@pytest.mark.parametrize(
    ("make", "device_gate", "process_gate"),
    [
        (lambda: running(6, steps=30), "not_recorded", "process_sample"),
        (few(49), "device_sample", "process_sample"),
        (few(0), "no_steps", "process_sample"),
        (lambda: process({}, points=40), "not_recorded", "process_sample"),
        (lambda: process({}), "not_recorded", None),
        (few(50), None, "process_sample"),
    ],
)
def test_what_is_not_recorded_is_unknown_and_names_the_way(
    evaluate: Evaluate, make: Callable[[], History], device_gate: str | None, process_gate: str | None
) -> None:
    e = evaluate(make(), ids=ID)
    assert (check(e, "device").gate, check(e, "process").gate) == (device_gate, process_gate)
    if device_gate == "not_recorded":
        assert "python.torch_trace" in (check(e, "device").output or "")
    if device_gate == "not_recorded" or (device_gate and process_gate):
        assert e.status is Status.UNKNOWN  # what the processes show does not answer for the devices
        assert blamed(e) == set()


def mixed() -> History:
    history = device({4: LEAK, 2: sawtooth(5)})
    history.rows["cpu.utilization"] = process({1: LEAK}).rows["cpu.utilization"]
    history.rows["gpu.devices"][1][0]["total_bytes"] = 2**34
    return history


@pytest.mark.parametrize("make", [mixed, few(0), few(1), few(60)])
@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, make: Callable[[], History], down: Collection[int]
) -> None:
    history = make()
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
