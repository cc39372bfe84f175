"""Real torchrun jobs (gloo, 4 ranks) and what one request to the gateway concludes about them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Stack

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

MODES = ["plain", "ddp", "fsdp"]
RUNS_ON = "100000"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path) as s:
        yield s


def culprits(body: dict[str, Any], *severities: str) -> set[int]:
    """Ranks that findings of these severities name as culprits."""
    return {r for f in body["findings"] if f["severity"] in severities for r in f["ranks"]}


def loud(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [f for f in body["findings"] if f["severity"] != "info"]


@pytest.mark.parametrize("mode", MODES)
def test_a_healthy_job_passes_and_is_silent(stack: Stack, mode: str) -> None:
    stack.torchrun("j", "--mode", mode, "--steps", RUNS_ON)
    stack.wait(lambda: stack.steps("j") > 120, 90, "120 steps")
    status, body = stack.health("j")
    assert (status, body["status"], body["phase"]) == (200, "pass", "running"), body
    assert loud(body) == []
    assert body["coverage"]["answered"] == body["coverage"]["world_size"] == 4


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_slowed_by_15_ms_is_named_and_its_victims_are_not(stack: Stack, mode: str) -> None:
    stack.torchrun("j", "--mode", mode, "--steps", RUNS_ON, "--fault", "slow:2:15", "--at", "0")
    stack.wait(lambda: stack.steps("j") > 120, 90, "120 steps")
    _, body = stack.health("j")
    assert body["status"] in ("warn", "fail"), body
    assert culprits(body, "warn", "fail") == {2}, body["findings"]
    assert body["drain_candidates"] == []


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_rank_is_the_first_death_within_15_seconds(stack: Stack, mode: str) -> None:
    stack.torchrun("j", "--mode", mode, "--steps", RUNS_ON, "--fault", "kill:1", "--at", "60")
    stack.wait(lambda: stack.steps("j") >= 57, 90, "the step before the kill")
    since = time.monotonic()
    status, body = stack.until("j", lambda _, b: b["status"] == "fail", 20)
    assert time.monotonic() - since < 15
    assert status == 503
    assert culprits(body, "fail") == {1}, body["findings"]


@pytest.mark.parametrize("mode", MODES)
def test_a_stopped_rank_is_named_by_one_request_with_its_collectives(stack: Stack, mode: str) -> None:
    stack.torchrun("j", "--mode", mode, "--steps", RUNS_ON, "--fault", "stop:3", "--at", "60")
    stack.wait(lambda: stack.steps("j") >= 57, 90, "the step before the stop")
    time.sleep(14)
    _, body = stack.health("j")
    assert body["status"] == "fail", body
    assert culprits(body, "warn", "fail") == {3}, body["findings"]
    victims = {r for f in body["findings"] for r in f["victims"]}
    assert victims == {0, 1, 2}
    assert evidence_of_collectives(body, 3)


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_that_holds_the_gil_in_c_is_named_by_one_request(stack: Stack, mode: str) -> None:
    stack.torchrun("j", "--mode", mode, "--steps", RUNS_ON, "--fault", "gil:0:60", "--at", "60")
    stack.wait(lambda: stack.steps("j") >= 57, 90, "the step before the hang")
    time.sleep(20)
    _, body = stack.health("j")
    assert body["status"] in ("warn", "fail"), body
    assert culprits(body, "warn", "fail") == {0}, body["findings"]
    assert evidence_of_collectives(body, 0)


def evidence_of_collectives(body: dict[str, Any], rank: int) -> bool:
    """The evidence shows what the rank last did and what the job waits in."""
    for finding in body["findings"]:
        if rank not in finding["ranks"]:
            continue
        names = [c["name"] for c in finding["evidence"]["columns"]]
        if "last_op" in names and "inflight_op" in names and finding["evidence"]["rows"]:
            return True
    return False


def test_a_rank_that_raises_is_the_first_death_and_its_error_is_shown(stack: Stack) -> None:
    stack.torchrun("j", "--mode", "ddp", "--steps", RUNS_ON, "--fault", "raise:2", "--at", "40")
    _, body = stack.until("j", lambda _, b: b["status"] == "fail", 90)
    assert culprits(body, "fail") == {2}, body["findings"]
    assert "injected failure" in str(body)


def test_a_finished_job_says_so_and_its_tables_still_answer(stack: Stack) -> None:
    job = stack.torchrun("j", "--mode", "plain", "--steps", "60", "--compute-ms", "5")
    assert job.wait(120) == 0, stack.logs()
    status, body = stack.health("j")
    assert (status, body["phase"]) == (200, "finished"), body
    assert loud(body) == []
    assert stack.query("j", "SELECT max(global_step), count(DISTINCT _rank) FROM python.torch_step_timing")[0][1] == 4


def test_data_loader_workers_do_not_record_and_training_goes_on(stack: Stack) -> None:
    job = stack.torchrun("j", "--mode", "ddp", "--steps", "60", "--compute-ms", "5", "--workers", "2")
    assert job.wait(150) == 0, stack.logs()
    assert stack.query("j", "SELECT count(*), count(DISTINCT pid) FROM process.rank") == [[4, 4]]


def test_two_jobs_on_one_node_are_kept_apart(stack: Stack) -> None:
    stack.torchrun("a", "--mode", "plain", "--steps", RUNS_ON, ranks=2)
    stack.torchrun("b", "--mode", "plain", "--steps", RUNS_ON, "--fault", "slow:1:30", "--at", "0", ranks=2)
    stack.wait(lambda: stack.steps("a") > 100 and stack.steps("b") > 100, 120, "100 steps of both")
    _, a = stack.health("a")
    _, b = stack.health("b")
    assert a["status"] == "pass", a
    assert culprits(b, "warn", "fail") == {1}, b
