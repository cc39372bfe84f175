"""The collective log: one row per operation, a slot while it is in flight, and who was blocked for how long."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from muster.probe.reader import LifeDir, discover
from muster.probe.recorder import Recorder
from probe.kit import make_recorder, rows

TABLE = "python.comm_collective"


@pytest.fixture
def group(recorder: Recorder) -> Any:
    return recorder.collectives.group("world", range(4))


def test_a_synchronous_operation_blocks_for_its_whole_time(recorder: Recorder, life: LifeDir, group: Any) -> None:
    before = time.time_ns()
    op = recorder.collectives.begin(
        "all_to_all", group, nbytes=24, shape=(2, 3), dtype="float32", in_splits=[1, 1], out_splits=(0, 2), seq=7
    )
    time.sleep(0.01)
    recorder.collectives.end(op)
    (row,) = rows(life, TABLE)
    assert row["op"] == "all_to_all"
    assert (row["pg_name"], row["group_rank"], row["group_size"], row["participate_ranks"]) == ("world", 0, 4, "[0,1,2,3]")
    assert (row["bytes"], row["tensor_shape"], row["tensor_dtype"]) == (24, "[2,3]", "float32")
    assert (row["in_splits"], row["out_splits"], row["seq"], row["async_op"]) == ("[1,1]", "[0,2]", 7, 0)
    assert row["timing_source"] == "sync"
    assert 10 <= row["duration_ms"] < 500
    assert row["blocked_ms"] == row["duration_ms"]
    assert before <= row["start_ns"] < row["end_ns"] <= time.time_ns() + 1_000_000
    assert row["end_ns"] - row["start_ns"] == pytest.approx(row["duration_ms"] * 1e6, abs=1000)
    assert (row["local_step"], row["global_step"], row["occurrence"], row["wait_start_ns"]) == (1, 1, 0, None)
    assert row["thread_id"] == threading.get_native_id()
    assert row["error"] is row["peer"] is None


def test_an_asynchronous_operation_blocks_for_call_and_wait_only(recorder: Recorder, life: LifeDir, group: Any) -> None:
    log = recorder.collectives
    op = log.begin("all_reduce", group, async_op=True)
    log.launched(op)
    time.sleep(0.05)
    log.wait_started(op)
    log.wait_started(op)
    time.sleep(0.01)
    log.end(op, timing_source="wait")
    (row,) = rows(life, TABLE)
    assert row["async_op"] == 1
    assert row["duration_ms"] >= 60
    assert 10 <= row["blocked_ms"] < 50
    assert row["start_ns"] < row["wait_start_ns"] < row["end_ns"]
    assert row["timing_source"] == "wait"


def test_an_operation_in_flight_is_seen_with_what_is_known_and_then_not_any_more(
    recorder: Recorder, life: LifeDir, group: Any
) -> None:
    log = recorder.collectives
    op = log.begin("send", group, nbytes=8, peer=2, seq=3, in_splits=[5])
    batch = life.in_flight()
    assert batch.rows == 1
    row = {name: values[0] for name, values in batch.columns.items()}
    assert (row["op"], row["peer"], row["seq"], row["bytes"], row["in_splits"]) == ("send", 2, 3, 8, "[5]")
    assert row["end_ns"] is row["duration_ms"] is row["blocked_ms"] is row["timing_source"] is None
    assert row["wait_start_ns"] is None
    log.wait_started(op)
    assert life.in_flight().columns["wait_start_ns"][0] >= row["start_ns"]
    log.end(op)
    assert life.in_flight().rows == 0
    assert rows(life, TABLE)[0]["start_ns"] == row["start_ns"]


def test_a_wrap_of_the_ring_never_erases_an_operation_in_flight(recorder: Recorder, life: LifeDir, group: Any) -> None:
    log = recorder.collectives
    hung = log.begin("all_gather", group, seq=1)
    for _ in range(20_000):
        log.end(log.begin("all_reduce", group))
    assert rows(life, TABLE)[0]["op"] == "all_reduce"
    assert life.in_flight().columns["op"] == ["all_gather"]
    log.end(hung)
    assert rows(life, TABLE)[-1]["op"] == "all_gather"


def test_more_operations_in_flight_than_slots_are_counted_and_still_get_rows(
    recorder: Recorder, life: LifeDir, group: Any
) -> None:
    log = recorder.collectives
    ops = [log.begin("isend", group, seq=i, async_op=True) for i in range(400)]
    shown = life.in_flight()
    assert 64 <= shown.rows < 400
    assert life.errors()["slots.inflight"] == 400 - shown.rows
    for op in ops:
        log.end(op)
    assert [r["seq"] for r in rows(life, TABLE)] == list(range(400))
    assert life.in_flight().rows == 0
    again = log.begin("all_reduce", group)
    assert life.in_flight().rows == 1
    log.end(again)


def test_occurrences_count_per_thread_step_group_and_operation(recorder: Recorder, life: LifeDir) -> None:
    log = recorder.collectives
    one, other, renamed = log.group("a", [0, 1]), log.group("a", [0, 2]), log.group("b", [0, 1])
    assert log.group("a", (0, 1)) is one
    assert other is not one

    def work() -> None:
        for op, group in (("x", one), ("x", one), ("x", other), ("x", renamed), ("y", one), ("x", one)):
            log.end(log.begin(op, group))

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    recorder.steps.boundary("user")
    log.end(log.begin("x", one))
    counts = [r["occurrence"] for r in rows(life, TABLE)]
    assert counts == [0, 1, 0, 0, 0, 2] * 2 + [0]
    assert len({r["thread_id"] for r in rows(life, TABLE)}) == 2


def test_blocked_time_of_the_main_thread_is_summed_into_the_step(recorder: Recorder, life: LifeDir, group: Any) -> None:
    log = recorder.collectives
    recorder.counter.watch_comm("patch")

    def elsewhere() -> None:
        log.end(log.begin("all_reduce", group), blocked_ns=10**9)

    for step in range(3):
        for _ in range(step):
            log.end(log.begin("all_reduce", group), blocked_ns=2_000_000)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        recorder.steps.boundary("optimizer")
    assert [r["comm_blocked_ms"] for r in rows(life, "python.torch_step_timing")] == [0.0, 2.0, 4.0]
    assert {r["comm_source"] for r in rows(life, "python.torch_step_timing")} == {"patch"}


def test_one_operation_whose_times_only_say_the_launch_makes_the_steps_sum_unknown(
    recorder: Recorder, life: LifeDir, group: Any
) -> None:
    log = recorder.collectives
    recorder.counter.watch_comm("patch")
    log.end(log.begin("all_reduce", group))
    log.end(log.begin("all_reduce", group), timing_source="enqueue")
    recorder.steps.boundary("optimizer")
    log.end(log.begin("all_reduce", group))
    recorder.steps.boundary("optimizer")
    first, second = (r["comm_blocked_ms"] for r in rows(life, "python.torch_step_timing"))
    assert first is None
    assert second > 0


def test_an_error_is_kept_and_the_slot_given_back(recorder: Recorder, life: LifeDir, group: Any) -> None:
    log = recorder.collectives
    log.end(log.begin("all_reduce", group), error=RuntimeError("size mismatch"))
    assert rows(life, TABLE)[0]["error"] == "RuntimeError: size mismatch"
    assert life.in_flight().rows == 0


def test_a_dropped_operation_leaves_no_row(recorder: Recorder, life: LifeDir, group: Any) -> None:
    op = recorder.collectives.begin("all_reduce", group)
    recorder.collectives.drop(op)
    assert rows(life, TABLE) == []
    assert life.in_flight().rows == 0


def test_nonsense_is_counted_and_never_raised(recorder: Recorder, life: LifeDir, group: Any) -> None:
    log = recorder.collectives
    op = log.begin("all_reduce", group, shape=object())  # type: ignore[arg-type]
    assert op is None
    log.launched(op)
    log.wait_started(op)
    log.end(op)
    log.end(log.begin("all_reduce", group, nbytes="many"))  # type: ignore[arg-type]
    (row,) = rows(life, TABLE)
    assert row["bytes"] is None
    assert set(life.errors()) == {"collective.begin", f"value.{TABLE}"}
    assert life.in_flight().rows == 0


def test_ids_of_ranks_and_roles_are_in_every_row(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path, rank=2)
    recorder.set_identity(world_size=16, role="dp=1,pp=0")
    log = recorder.collectives
    log.end(log.begin("barrier", log.group("pp", [2, 6])))
    life = discover(tmp_path, "job")[0]
    (row,) = rows(life, TABLE)
    assert (row["rank"], row["world_size"], row["role"], row["group_rank"]) == (2, 16, "dp=1,pp=0", 0)
    life.close()
    recorder.close()
