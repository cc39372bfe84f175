"""The job does not get going: who never joined, who is behind before the first step; a long first step is silent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import NOW_NS, Cluster, History, dead, running, waiting
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, named, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.model import Kind, Phase, Severity, Status

ID = ("startup_stall",)


def starting(waited_s: float = 60, world: int = 6) -> History:
    """Nobody has completed a step."""
    history = running(world, steps=0)
    for rank in range(world):
        history.now(rank).update(started_ns=NOW_NS - int(waited_s * 1e9), age_s=waited_s, open_span=None)
    return history


def operations(
    history: History, rank: int, upto: int, *, pg: str = "world", members: Sequence[int] = (), **more: Any
) -> None:
    rows = history.rows["python.comm_collective"].setdefault(rank, [])
    for seq in range(1, upto + 1):
        rows.append(
            {
                "rank": rank, "op": "broadcast", "pg_name": pg, "seq": seq, "start_ns": NOW_NS - 10_000 + seq,
                "end_ns": NOW_NS - 9_000 + seq, "participate_ranks": str(list(members or range(history.world))),
            } | more
        )  # fmt: skip


def one_behind(history: History, rank: int, waited_s: float, **now: Any) -> None:
    """The others wait in operation 4, this one has not got past 3."""
    others = [r for r in history.present() if r != rank]
    waiting(history, others, waited_s)
    for r in range(history.world):
        operations(history, r, 3 if r == rank else 4)
    history.now(rank).update({"age_s": waited_s, "cpu_pct": 0.0, "state": "S"} | now)


def test_a_job_that_has_started_passes(evaluate: Evaluate) -> None:
    history = running()
    for rank in range(6):
        operations(history, rank, 4)
    e = evaluate(history, ids=ID)
    assert (e.status, loud(e), e.waves) == (Status.PASS, [], 1)


@pytest.mark.parametrize("waited_s", [5, 400])
def test_a_long_first_step_is_starting_and_silent(evaluate: Evaluate, waited_s: float) -> None:
    history = starting(waited_s)
    waiting(history, [1, 2, 3, 4, 5], waited_s)
    for rank in range(6):
        operations(history, rank, 3 if rank == 0 else 4)
    history.now(0).update(age_s=waited_s, cpu_pct=100.0, state="R")
    e = evaluate(history, ids=ID)
    assert (e.status, e.phase, loud(e)) == (Status.UNKNOWN, Phase.STARTING, [])
    assert check(e, "going").gate == "starting"


@pytest.mark.parametrize(("waited_s", "severity"), [(300, Severity.WARN), (700, Severity.FAIL)])
def test_ranks_that_never_joined_are_named(evaluate: Evaluate, waited_s: float, severity: Severity) -> None:
    history = starting(waited_s)
    for rank in (4, 5):
        history.vanish(rank)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.victims, found.severity) == ("never_joined", (4, 5), (0, 1, 2, 3), severity)


def test_ranks_that_have_not_joined_yet_are_no_finding(evaluate: Evaluate) -> None:
    history = starting(30)
    history.vanish(5)
    e = evaluate(history, ids=ID)
    assert (e.status, loud(e), check(e, "joined").gate) == (Status.UNKNOWN, [], "starting")


def test_a_rank_that_is_behind_in_its_group_and_still_is_named(evaluate: Evaluate) -> None:
    history = starting(700)
    one_behind(history, 2, 700, open_span="DataLoader.next", open_phase="data")
    e = evaluate(history, ids=ID)
    found = only(e)
    assert (found.id, found.ranks, found.kind, found.severity) == ("late_at_start", (2,), Kind.DATA, Severity.WARN)
    assert found.victims == (0, 1, 3, 4, 5)
    assert "at operation 3 of group world while others are at 4" in found.message
    assert named(e, "slow_start").severity is Severity.INFO


def test_after_half_an_hour_it_is_a_failure(evaluate: Evaluate) -> None:
    history = starting(2000)
    one_behind(history, 2, 2000)
    assert only(evaluate(history, ids=ID)).severity is Severity.FAIL


def test_a_rank_that_is_behind_and_computes_is_told_and_not_blamed(evaluate: Evaluate) -> None:
    """One rank builds the index of the data set, or compiles, for all."""
    history = starting(700)
    one_behind(history, 2, 700, cpu_pct=100.0, state="R")
    e = evaluate(history, ids=ID)
    assert loud(e) == []
    assert named(e, "late_at_start").severity is Severity.INFO


def test_counters_of_two_groups_are_not_compared(evaluate: Evaluate) -> None:
    history = starting(700)
    waiting(history, range(6), 200)
    for rank in range(6):
        first = rank < 3
        operations(history, rank, 9 if first else 2, pg="dp", members=[0, 1, 2] if first else [3, 4, 5])
    assert loud(evaluate(history, ids=ID)) == []


def test_the_flight_recorder_shows_it_where_nothing_else_does(evaluate: Evaluate) -> None:
    history = starting(700)
    waiting(history, [0, 1, 3, 4, 5], 700)
    history.now(2).update(age_s=700.0, cpu_pct=0.0)
    history.rows["python.torch_nccl_pg_status"] = {
        r: [
            {"snapshot_id": t, "rank": r, "pg_id": 0, "pg_name": "0", "ranks": "[0, 1, 2, 3, 4, 5]",
             "last_enqueued_collective": 7 - (r == 2) - (t == 1), "last_completed_collective": 6}
            for t in (1, 2)
        ]
        for r in range(6)
    }  # fmt: skip
    found = only(evaluate(history, ids=ID))
    assert (found.ranks, found.observed) == ((2,), 1)


def test_different_operations_before_the_first_step_are_a_mismatch(evaluate: Evaluate) -> None:
    history = starting(120)
    waiting(history, [0, 1, 2, 3, 4], 100)
    waiting(history, [5], 100, op="barrier")
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.kind) == ("disagree_at_start", (5,), Kind.CODE)


def test_all_wait_in_the_same_operation_is_the_network_and_nobody(evaluate: Evaluate) -> None:
    history = starting(900)
    waiting(history, range(6), 800, op="barrier")
    for rank in range(6):
        operations(history, rank, 1)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.kind) == ("all_wait_at_start", (), Kind.NETWORK)


def test_a_death_before_the_first_step_is_for_crash_triage(evaluate: Evaluate) -> None:
    history = starting(100)
    dead(history, 3)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.next) == ("died_at_start", (), ("crash_triage",))


def test_nobody_answers(evaluate: Evaluate) -> None:
    history = starting(1000)
    history.down = {0, 1, 2}
    e = evaluate(history, ids=ID)
    assert (e.status, check(e, "going").gate) == (Status.UNKNOWN, "no_rows")


def test_without_operations_the_level_is_unknown(evaluate: Evaluate) -> None:
    assert check(evaluate(starting(60), ids=ID), "level").gate == "no_groups"


def test_the_texts_exist_in_chinese(evaluate: Evaluate) -> None:
    history = starting(700)
    one_behind(history, 2, 700)
    assert "第一步之前" in only(evaluate(history, ids=ID, lang="zh")).message


@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, down: tuple[int, ...]
) -> None:
    history = starting(700)
    one_behind(history, 2, 700)
    for rank in range(6):
        operations(history, rank, 2, pg="dp", members=[rank % 2, 2 + rank % 2], end_ns=None)
    history.rows["python.torch_nccl_pg_status"] = {
        r: [{"snapshot_id": t, "rank": r, "pg_name": g, "last_enqueued_collective": t} for t in range(3) for g in "ab"]
        for r in range(6)
    }
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
