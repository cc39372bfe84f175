"""`muster demo` as a user runs it: real processes, one injected fault, the right rank named, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(120)


def demo(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, health answer, standard error. Everything that the demo makes lies below `tmp_path`."""
    done = subprocess.run(
        [sys.executable, "-m", "muster.cli", "demo", "--json", "--duration", "60", *words],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert not leftovers(tmp_path)
    assert list(tmp_path.glob("muster-demo-*")) == []
    return done.returncode, json.loads(done.stdout), done.stderr


def leftovers(tmp_path: Path) -> list[str]:
    """Processes of a demo that are still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MUSTER_DIR", "").startswith(str(tmp_path)):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def culprits(body: dict[str, Any]) -> set[int]:
    return {r for f in body["findings"] if f["severity"] in ("warn", "fail") for r in f["ranks"]}


def test_without_a_fault_nobody_is_blamed(tmp_path: Path) -> None:
    code, body, said = demo(tmp_path, "--fault", "none")
    assert culprits(body) == set(), body["findings"]
    assert (code, body["phase"]) == ({"pass": 0, "warn": 1}[body["status"]], "running")
    assert body["coverage"]["answered"] == 4
    assert said == ""


@pytest.mark.parametrize("rank", [0, 2])
def test_the_slowed_rank_is_named_and_not_its_victims(tmp_path: Path, rank: int) -> None:
    code, body, _ = demo(tmp_path, "--fault", f"straggler:{rank}")
    assert code in (1, 2)
    assert culprits(body) == {rank}, body["findings"]
    assert f"rank {rank}" in body["summary"]


def test_a_stopped_rank_is_named_with_those_that_wait(tmp_path: Path) -> None:
    code, body, _ = demo(tmp_path, "--fault", "hang:3")
    assert (code, body["status"]) == (2, "fail")
    assert culprits(body) == {3}
    assert {v for f in body["findings"] for v in f["victims"]} == {0, 1, 2}


def test_a_killed_rank_is_the_first_death(tmp_path: Path) -> None:
    code, body, _ = demo(tmp_path, "--ranks", "3", "--fault", "kill:1")
    assert (code, body["status"]) == (2, "fail")
    assert culprits(body) == {1}
    assert body["recommendation"] == "requeue"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_nothing_behind(tmp_path: Path, how: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "muster.cli", "demo", "--keep", "--fault", "hang:1"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 60
    while len(leftovers(tmp_path)) < 5:  # agent and four ranks; the gateway needs no directory
        assert time.monotonic() < end
        time.sleep(0.2)
    process.send_signal(how)
    assert process.wait(20) == 130
    assert not leftovers(tmp_path)
    assert list(tmp_path.glob("muster-demo-*")) == []
