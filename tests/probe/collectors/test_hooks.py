"""Hooks: set whenever torch is imported, taken away without a trace, and in nobody's way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from probe.collectors.ranks import INJECT, Job, Rank, checked, run

pytestmark = pytest.mark.torch


def python(source: str, directory: Path, **environ: str) -> str:
    """Run a program that is rank 0 of 1 under the recorder; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(INJECT),
            "MUSTER_DIR": str(directory),
            "RANK": "0",
            "WORLD_SIZE": "1",
        }
        | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hooks_leave_no_trace_when_recording_stops(tmp_path: Path) -> None:
    with Job(tmp_path, "undo.py", ranks=1, collect="none") as job:
        job.wait()


def test_starting_imports_nothing_of_torch(tmp_path: Path) -> None:
    source = "import sys, muster.probe; print(muster.probe.recording(), 'torch' in sys.modules)"
    assert python(source, tmp_path, MUSTER_JOB="job").split() == ["True", "False"]


@pytest.mark.parametrize(
    "source",
    [
        "from torch.distributed import all_reduce; import torch.distributed.distributed_c10d as m",
        "import torch.distributed.distributed_c10d as m; all_reduce = m.all_reduce",
        "import torch.nn; import torch.distributed.distributed_c10d as m; from torch.distributed import *",
    ],
)
def test_names_are_hooked_in_whatever_order_torch_is_imported(tmp_path: Path, source: str) -> None:
    check = "print(all_reduce is m.all_reduce, 'muster' in all_reduce.__code__.co_filename)"
    assert python(f"{source}\n{check}", tmp_path, MUSTER_JOB="job").split() == ["True", "True"]


def test_without_a_job_nothing_is_hooked(tmp_path: Path) -> None:
    source = "import torch.distributed as d; print('muster' in d.all_reduce.__code__.co_filename)"
    assert python(source, tmp_path).split() == ["False"]


def test_an_unknown_collector_is_counted_and_named(tmp_path: Path) -> None:
    source = "import muster.probe as p; print(p.errors(), p.current().collectors)"
    assert "'collectors': 1" in python(source, tmp_path, MUSTER_JOB="job", MUSTER_COLLECT="steps,nonsense")


def test_single_collectors_can_be_chosen(tmp_path: Path) -> None:
    source = """
import torch
m = torch.nn.Linear(2, 2); o = torch.optim.SGD(m.parameters(), 0.1)
print('muster' in torch.distributed.all_reduce.__code__.co_filename)
m(torch.ones(1, 2)).sum().backward(); o.step()
import muster.probe as p; print(p.current().steps.source)
"""
    assert python(source, tmp_path, MUSTER_JOB="job", MUSTER_COLLECT="steps").split() == ["False", "optimizer"]


@pytest.fixture(scope="module")
def optimizers(tmp_path_factory: pytest.TempPathFactory) -> Job:
    with Job(tmp_path_factory.mktemp("optimizers"), "optimizers.py", ranks=1, collect="none") as job:
        job.wait()
        return job


@pytest.mark.parametrize(
    ("way", "steps"),
    [
        ("one", 5), ("two", 5), ("gan", 6), ("in_backward", 5), ("wrapped", 5), ("scheduled", 5), ("failing", 5),
        ("replaced", 6),
    ],
)  # fmt: skip
def test_steps_are_those_of_the_first_optimizer(optimizers: Job, way: str, steps: int) -> None:
    (rank,) = checked(optimizers.read(way), 1)
    assert [s["local_step"] for s in rank.steps] == list(range(1, steps + 1))
    assert rank.meta.step_source == "optimizer"
    assert rank.life.open_spans() == []


def test_without_an_optimizer_there_are_no_steps(optimizers: Job) -> None:
    (rank,) = checked(optimizers.read("none"), 1)
    assert rank.steps == []
    assert rank.meta.step_source is None
    assert rank.spans["backward"] == 5


def test_compiled_code_is_compiled_as_without_the_hooks(tmp_path: Path) -> None:
    for rank in run(tmp_path, "compiled.py"):
        assert len(rank.steps) == 4


@pytest.fixture(scope="module")
def functional(tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    return run(tmp_path_factory.mktemp("functional"), "tensor_parallel.py")


def test_functional_collectives_end_at_the_first_use_of_their_result(functional: list[Rank]) -> None:
    reduced = [r.only("all_reduce", bytes=128, tensor_shape="[4,8]", local_step=1, occurrence=1) for r in functional]
    assert all((r["async_op"], r["timing_source"], r["group_size"]) == (1, "wait", 2) for r in reduced)
    assert reduced[1]["duration_ms"] - reduced[1]["blocked_ms"] > 49  # the 50 ms that it worked meanwhile


def test_functional_gathers_count_the_whole_buffer(functional: list[Rank]) -> None:
    gathered = [r for r in functional[0].collectives if r["op"].startswith("all_gather") and r["tensor_shape"] == "[2,3]"]
    assert [r["bytes"] for r in gathered] == [48]


def test_results_that_nobody_uses_do_not_stay_in_flight(functional: list[Rank]) -> None:
    row = functional[0].only("all_reduce", bytes=20)
    assert row["wait_start_ns"] is None
    assert row["blocked_ms"] < row["duration_ms"]


def test_tensor_parallel_layers_are_seen_in_every_step(functional: list[Rank]) -> None:
    for rank in functional:
        per_step = [sum(r["local_step"] == n for r in rank.collectives) for n in (2, 3, 4, 5)]
        assert len(set(per_step)) == 1
        assert per_step[0] >= 2
        assert all(s["comm_blocked_ms"] > 0 for s in rank.steps)
