"""A real torchrun job (gloo, 4 ranks) with one slow rank, and one without: what the diagnoses of performance say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Stack

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]
ASKED = "persistent_straggler,slow_rank,comm_bottleneck,input_bottleneck"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path) as s:
        yield s


def asked(stack: Stack, *fault: str, mode: str = "ddp") -> dict[str, Any]:
    stack.torchrun("j", "--mode", mode, "--steps", "100000", *fault)
    stack.wait(lambda: stack.steps("j") > 130, 120, "130 steps")
    return stack.health("j", diagnosis=ASKED, deadline=25)[1]


def named(body: dict[str, Any]) -> dict[str, list[int]]:
    return {f["id"]: f["ranks"] for f in body["findings"] if f["ranks"]}


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_slow_rank_is_last_on_most_steps_and_nobody_else_is_named(stack: Stack, mode: str) -> None:
    body = asked(stack, "--fault", "slow:2:15", "--at", "0", mode=mode)
    found = named(body)
    assert found["persistent_straggler"] == [2], body["findings"]
    assert {r for ranks in found.values() for r in ranks} == {2}
    assert {f["kind"] for f in body["findings"] if f["ranks"]} == {"worker"}
    assert body["drain_candidates"] == []


def test_a_healthy_job_names_nobody(stack: Stack) -> None:
    assert named(asked(stack)) == {}
