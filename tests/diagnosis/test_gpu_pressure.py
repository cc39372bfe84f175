"""gpu_pressure: out of memory, little headroom, and full devices that mean nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import NOW_NS, Cluster, History, dead, running
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, named, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.model import Kind, Severity, Status

ID = ["gpu_pressure"]
GB = 10**9


def using(peaks_gb: dict[int, float], *, device_gb: float = 80, held_gb: float = 78, used_pct: float = 97.0) -> History:
    """6 ranks on 3 nodes with two devices each; a rank's peak is 40 GB unless given."""
    history = running(6, steps=30)
    history.rows["python.torch_trace"] = {
        r: [
            {
                "local_step": s, "seq": 1, "stage": "post step", "module": None, "allocated": 30_000.0,
                "max_allocated": peaks_gb.get(r, 40.0) * 1000, "cached": held_gb * 1000, "max_cached": held_gb * 1000,
            }
            for s in range(1, 30)
        ]
        for r in range(6)
    }  # fmt: skip
    history.rows["gpu.devices"] = {
        n: [{"device_id": d, "total_bytes": int(device_gb * GB)} for d in range(2)] for n in range(3)
    }
    history.rows["gpu.utilization"] = {
        n: [
            {
                "ts": NOW_NS // 1000 - 10**6 * (10 - i), "device_id": d, "name": "GPU", "total_bytes": int(device_gb * GB),
                "used_bytes": int(device_gb * GB * used_pct / 100), "mem_used_pct": used_pct - (10 - i),
                "gpu_util_pct": -1.0,
            }
            for i in range(11)
            for d in range(2)
        ]
        for n in range(3)
    }  # fmt: skip
    return history


def out_of_memory(history: History, rank: int, message: str | None, exception: str | None = None) -> History:
    dead(history, rank)
    history.rows["process.exit"][rank] = [
        {"ts": NOW_NS, "rank": rank, "kind": "exception", "exception": exception, "message": message, "last_step": 29}
    ]
    return history


def test_a_cache_that_fills_the_device_is_no_trouble(evaluate: Evaluate) -> None:
    e = evaluate(using({}), ids=ID)
    assert (e.status, e.findings) == (Status.PASS, ())
    assert check(e, "headroom").observed == pytest.approx(0.5)


def test_a_full_device_is_for_information(evaluate: Evaluate) -> None:
    e = evaluate(using({}, used_pct=99.5), ids=ID)
    assert (e.status, named(e, "devices_full").severity) == (Status.PASS, Severity.INFO)
    assert "6 devices" in named(e, "devices_full").message


def test_tensors_that_fill_the_device_are_a_warning(evaluate: Evaluate) -> None:
    found = only(evaluate(using({3: 77.5}), ids=ID))
    assert (found.id, found.severity, found.kind, found.ranks) == ("little_headroom", Severity.WARN, Kind.MEMORY, (3,))
    assert found.hosts == ("n1",)


@pytest.mark.parametrize(
    ("message", "exception"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "torch.OutOfMemoryError"),
        (None, "torch.cuda.OutOfMemoryError"),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", "RuntimeError"),
    ],
)
def test_running_out_of_memory_is_a_failure(evaluate: Evaluate, message: str | None, exception: str) -> None:
    found = only(evaluate(out_of_memory(using({}), 2, message, exception), ids=ID))
    assert (found.id, found.severity, found.ranks) == ("out_of_memory", Severity.FAIL, (2,))
    assert found.onset_step == 29


def test_other_ends_are_not_out_of_memory(evaluate: Evaluate) -> None:
    e = evaluate(out_of_memory(using({}), 2, "connection closed by peer", "RuntimeError"), ids=ID)
    assert "out_of_memory" not in {f.id for f in e.findings}


def test_devices_of_unlike_size_are_matched_by_local_rank(evaluate: Evaluate) -> None:
    """Local ranks of this history are its ranks: rank 1 has device 1 of node 0."""
    history = using({1: 39.0})
    history.rows["gpu.devices"][0][1]["total_bytes"] = 40 * GB
    history.rows["python.torch_trace"][0][0]["max_allocated"] = 45_000.0
    assert only(evaluate(history, ids=ID)).ranks == (1,)


@pytest.mark.parametrize(
    ("drop", "headroom", "use"),
    [
        (["python.torch_trace"], "not_recorded", None),
        (["gpu.devices"], "limit", None),
        (["gpu.utilization"], None, "not_recorded"),
        (["python.torch_trace", "gpu.devices", "gpu.utilization"], "not_recorded", "not_recorded"),
    ],
)
def test_what_is_not_recorded_is_unknown_and_names_the_way(
    evaluate: Evaluate, drop: list[str], headroom: str | None, use: str | None
) -> None:
    history = using({})
    for table in drop:
        del history.rows[table]
    e = evaluate(history, ids=ID)
    assert (check(e, "headroom").gate, check(e, "use").gate) == (headroom, use)
    for c in e.checks:
        assert c.gate is None or (c.status is Status.UNKNOWN and c.output)
    assert loud(e) == []
    assert e.status is (Status.UNKNOWN if headroom else Status.PASS)


def test_a_device_that_does_not_count_its_memory_is_unknown(evaluate: Evaluate) -> None:
    history = using({})
    for rows in history.rows["python.torch_trace"].values():
        for row in rows:
            row |= {"allocated": None, "max_allocated": None}
    assert check(evaluate(history, ids=ID), "headroom").gate == "no_peak"


def odd() -> History:
    history = out_of_memory(using({3: 79.0}), 2, "out of memory")
    history.rows["gpu.devices"][1][0]["total_bytes"] = 2 * GB
    return history


@pytest.mark.parametrize("make", [odd, lambda: using({}), lambda: running(3, steps=0)])
@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, make: Callable[[], History], down: tuple[int, ...]
) -> None:
    history = make()
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
