"""Steps, phases, and a rank's own time, in real training loops of two ranks."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from probe.collectors.ranks import Job, Rank, run_several

pytestmark = pytest.mark.torch
STEPS = 12


SLOW = [(mode, place) for mode in ("plain", "ddp", "fsdp") for place in ("data", "forward", "backward", "optimizer")]


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Rank]]:
    found = run_several(tmp_path_factory.mktemp("slow"), *(f"--mode {m} --slow {p} --steps 20" for m, p in SLOW))
    return dict(zip(SLOW, found, strict=True))


@pytest.mark.parametrize(("mode", "place"), SLOW)
def test_a_rank_slowed_by_15_ms_has_15_ms_more_time_of_its_own(
    slowed: dict[tuple[str, str], list[Rank]], mode: str, place: str
) -> None:
    own = [r.own_ms() for r in slowed[mode, place]]
    assert 9 < own[1] - own[0] < 30, own


TRAININGS = {
    "buffers": "--mode ddp-buffers --evaluate --checkpoint",
    "fsdp": "--mode fsdp",
    "accumulate": "--mode ddp --accumulate 3 --steps 4",
    "hook": "--mode ddp --comm-hook --steps 4",
    "unused": "--mode ddp-unused --steps 4",
    "user": "--user-steps --steps 4",
    "fork": "--workers 2 --start-method fork --steps 5",
    "spawn": "--workers 2 --start-method spawn --steps 5",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Rank]]:
    found = run_several(tmp_path_factory.mktemp("train"), *TRAININGS.values())
    return dict(zip(TRAININGS, found, strict=True))


def test_ddp_reduction_is_one_row_a_step_with_the_bytes_of_all_gradients(trained: dict[str, list[Rank]]) -> None:
    for rank in trained["buffers"]:
        reductions = [r for r in rank.collectives if r["op"] == "all_reduce"]
        assert [r["local_step"] for r in reductions] == list(range(1, STEPS + 1))
        assert {r["bytes"] for r in reductions} == {4 * (8 * 64 + 64 + 64 * 8 + 8 + 2 * 64)}
        assert len({r["seq"] for r in reductions}) == STEPS
        for step in rank.steps:
            blocked = [r["blocked_ms"] for r in rank.collectives if r["local_step"] == step["local_step"]]
            assert step["comm_blocked_ms"] == pytest.approx(sum(blocked))
            assert step["comm_source"] == "ddp"


def test_buffers_that_ddp_sends_in_forward_are_seen(trained: dict[str, list[Rank]]) -> None:
    first = trained["buffers"][0]
    sent = [r for r in first.collectives if r["op"] == "broadcast_coalesced"]
    assert Counter(r["local_step"] for r in sent)[5] == 1


def test_phases_are_spans_and_columns(trained: dict[str, list[Rank]]) -> None:
    for rank in trained["buffers"]:
        assert rank.spans["forward"] == rank.spans["backward"] == rank.spans["optimizer.step"] == STEPS
        assert rank.spans["data.next"] == STEPS
        for step in rank.steps:
            parts = [step[f"{p}_ms"] for p in ("data", "forward", "backward", "optimizer")]
            assert all(p > 0 for p in parts)
            assert step["forward_ms"] >= 4
            assert sum(parts) <= step["step_duration_sec"] * 1e3


def test_steps_with_evaluation_or_a_checkpoint_say_so(trained: dict[str, list[Rank]]) -> None:
    for rank in trained["buffers"]:
        phases = {s["local_step"]: s["phase"] for s in rank.steps}
        # evaluation and checkpoint come after the optimizer of steps 4, 7, 8, so they fall into the steps that follow
        assert phases == dict.fromkeys(range(1, STEPS + 1)) | {1: "warmup", 5: "eval", 8: "checkpoint", 9: "eval"}
        (checkpoint,) = rank.checkpoints
        assert (checkpoint["kind"], checkpoint["step"]) == ("torch.save", 8)
        assert checkpoint["bytes"] > 1000
        assert checkpoint["duration_ms"] > 0


def test_fsdp_gathers_and_scatters_are_seen_once_each(trained: dict[str, list[Rank]]) -> None:
    for rank in trained["fsdp"]:
        per_step = Counter(r["op"] for r in rank.collectives if r["local_step"] == 5)
        # two layers: gathered in forward and again in backward (the last one is kept), gradients of each scattered
        assert per_step["reduce_scatter_single"] == 2
        assert per_step["all_gather_single"] in (3, 4)
        assert set(per_step) == {"reduce_scatter_single", "all_gather_single"}
        assert rank.spans["forward"] == STEPS
        assert all(s["comm_source"] == "patch" and s["comm_blocked_ms"] > 0 for s in rank.steps)


def test_accumulation_without_synchronisation_reduces_once_and_counts_micro_batches(trained: dict[str, list[Rank]]) -> None:
    for rank in trained["accumulate"]:
        assert rank.ops["all_reduce"] == 4
        assert rank.meta.step_source == "optimizer"
        assert [(s["local_step"], s["micro_batches"], s["micro_step"]) for s in rank.steps] == [
            (1, 3, 3), (2, 3, 6), (3, 3, 9), (4, 3, 12),
        ]  # fmt: skip
        assert all(s["comm_blocked_ms"] is not None for s in rank.steps)


def test_traffic_of_the_users_communication_hook_is_not_counted_twice(
    trained: dict[str, list[Rank]],
) -> None:
    for rank in trained["hook"]:
        by_hook = [r for r in rank.collectives if r["op"] == "all_reduce" and r["async_op"] == 1]
        by_reducer = [r for r in rank.collectives if r["op"] == "all_reduce" and r["async_op"] == 0]
        assert len(by_hook) == len(by_reducer) == 4
        assert all(r["bytes"] for r in by_hook)
        assert all(r["bytes"] is None for r in by_reducer)


def test_parameters_that_take_no_part_do_not_hide_the_reduction(trained: dict[str, list[Rank]]) -> None:
    for rank in trained["unused"]:
        assert rank.ops["all_reduce"] == 4
        assert all(s["comm_blocked_ms"] is not None for s in rank.steps)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers_record_nothing(trained: dict[str, list[Rank]], method: str) -> None:
    for rank in trained[method]:
        assert len(rank.steps) == 5
        assert rank.spans["data.next"] == 5
        assert rank.meta.life == rank.life.life


def test_the_script_can_count_steps_itself(trained: dict[str, list[Rank]]) -> None:
    for rank in trained["user"]:
        assert rank.meta.step_source == "user"
        by_user = [s["global_step"] for s in rank.steps if s["step_source"] == "user"]
        assert by_user == [1000, 1001, 1002, 1003]


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_while_a_rank_hangs_its_peer_is_seen_in_the_reduction_and_it_is_not(tmp_path: Path, place: str) -> None:
    with Job(tmp_path, "train.py", "--mode", "ddp", "--hang", place) as job:
        end = time.monotonic() + 60
        while True:
            ranks = job.read()
            waiting = [r.life.in_flight() for r in ranks]
            if len(ranks) == 2 and waiting[0].rows and waiting[0].columns["local_step"] == [6]:
                break
            assert time.monotonic() < end, job.output()
            time.sleep(0.1)
        assert waiting[0].columns["op"] == ["all_reduce"]
        assert waiting[0].columns["seq"][0] > 0
        time.sleep(0.3)
        (first, second) = job.read()
        assert first.life.in_flight().rows == 1
        assert second.life.in_flight().rows == 0
        assert place in {s.phase for s in second.life.open_spans()}
