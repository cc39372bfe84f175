"""What an agent leaves out of its tables is said in the coverage of the answers that it changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.real_agents import RealAgent, RealJob

pytestmark = pytest.mark.anyio
OTHER = """
import muster.probe as probe
assert probe.start(), probe.errors()
probe.table("my.scores", score=float, tag=int).row(score=9.0, tag=7)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RealJob]:
    agent = RealAgent("n0", tmp_path / "n0")
    agent.record(0, 3, ["my.scores"])
    agent.info()
    own = {"MUSTER_JOB": "j", "MUSTER_DIR": str(agent.directory), "MUSTER_GENERATION": "g", "MUSTER_COLLECT": "none"}
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")} | own
    environ |= {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    subprocess.run([sys.executable, "-c", OTHER], env=environ, check=True, timeout=60)
    yield RealJob([agent], 2)
    agent.stop()


async def test_a_column_that_a_rank_has_in_another_type_is_null_there_and_said(job: RealJob) -> None:
    result = await job.ask("SELECT _rank, count(*) AS n, count(tag) AS tags FROM my.scores GROUP BY _rank ORDER BY _rank")
    assert result.table is not None
    assert result.table.to_pylist() == [{"_rank": 0, "n": 3, "tags": 1}, {"_rank": 1, "n": 1, "tags": 0}]
    assert result.coverage.notes == ("my.scores.tag of rank 1 has type BIGINT there, VARCHAR is kept (NULL)",)
    assert result.coverage.complete


async def test_an_answer_that_does_not_read_the_column_says_nothing(job: RealJob) -> None:
    result = await job.ask("SELECT max(score) AS best FROM my.scores")
    assert result.table is not None
    assert result.table.to_pylist() == [{"best": 9.0}]
    assert result.coverage.notes == ()
