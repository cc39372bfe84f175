"""All ranks of one life of a job have one generation, and another life has another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from muster.probe.reader import discover
from probe.collectors.ranks import INJECT, SCRIPTS, Job

pytestmark = pytest.mark.torch


def test_a_restart_that_the_launcher_does_not_count_is_a_new_generation(tmp_path: Path) -> None:
    for _ in range(2):
        with Job(tmp_path, "train.py", "--steps", "3", MUSTER_GENERATION="given") as job:
            job.wait()
    generations = {}
    for life in discover(job.rings, "job"):
        meta = life.meta()
        assert meta is not None
        assert meta.generation_final
        generations.setdefault(meta.generation, []).append(life.rank)
    first, second = sorted(generations)
    assert first == "given"
    assert second.startswith("given@")
    assert generations == {first: [0, 1], second: [0, 1]}


def test_ranks_of_torchrun_agree(tmp_path: Path) -> None:
    launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, str(SCRIPTS / "train.py"), "--steps", "3"],
        env={"PYTHONPATH": str(INJECT), "MUSTER_JOB": "job", "MUSTER_DIR": str(tmp_path / "rings"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    metas = [life.meta() for life in discover(tmp_path / "rings", "job")]
    assert [m and m.rank for m in metas] == [0, 1]
    assert len({m and m.generation for m in metas}) == 1
    assert all(m is not None and m.generation_final and m.world_size == 2 for m in metas)
