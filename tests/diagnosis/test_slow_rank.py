"""slow_rank: who is slow now, against peers and against itself."""

from __future__ import annotations

import random

import pytest

from diagnosis.collectives import needs_traces, trace
from diagnosis.conftest import Evaluate
from diagnosis.histories import Cluster, History, OwnTime, running, slowed, steady
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, named, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.diagnosis.evaluation import Evaluation
from muster.model import Kind, Severity, Status

ID = ["slow_rank"]


def staged(own: OwnTime, *, dp: int = 3, pp: int = 2) -> History:
    history = running(dp * pp, nodes=2, own=own)
    history.roles = {r: f"dp={r % dp},pp={r // dp},tp=0" for r in range(dp * pp)}
    return history


def blamed(e: Evaluation) -> set[int]:
    return {r for f in e.findings for r in f.ranks}


def test_a_rank_that_became_slow_is_named_with_its_onset(evaluate: Evaluate) -> None:
    e = evaluate(running(6, own=slowed(steady(), [4], 12, since=70)), ids=ID)
    found = named(e, "slow_against_peers")
    assert [(f.id, f.ranks) for f in loud(e)] == [("slow_against_peers", (4,)), ("slower_than_itself", (4,))]
    assert (found.id, found.kind, found.ranks, found.confidence) == ("slow_against_peers", Kind.WORKER, (4,), "high")
    assert found.severity is Severity.WARN
    assert found.onset_step is not None
    assert 20 <= found.onset_step <= 70


def test_twice_as_slow_is_a_failure(evaluate: Evaluate) -> None:
    found = only(evaluate(running(6, own=slowed(steady(), [0], 25)), ids=ID))
    assert (found.severity, found.ranks, found.confidence) == (Severity.FAIL, (0,), "medium")


def test_what_is_over_is_silent(evaluate: Evaluate) -> None:
    """Slow until step 90, as its peers since then."""
    own = steady()
    e = evaluate(running(6, own=lambda r, s, rng: own(r, s, rng) + (15 if r == 4 and s < 90 else 0)), ids=ID)
    assert e.status is Status.PASS


@pytest.mark.parametrize("world", [2, 6, 32])
@pytest.mark.parametrize("jitter", [0.02, 0.05, 0.1])
def test_a_healthy_job_is_silent(evaluate: Evaluate, world: int, jitter: float) -> None:
    e = evaluate(running(world, nodes=2, steps=200, own=steady(jitter=jitter)), ids=ID)
    assert (e.status, e.findings) == (Status.PASS, ())


def test_one_fast_rank_does_not_make_all_others_slow(evaluate: Evaluate) -> None:
    e = evaluate(running(6, own=slowed(steady(), [2], -10)), ids=ID)
    assert (loud(e), blamed(e)) == ([], set())
    assert [f.id for f in e.findings] == ["one_is_faster"]


@pytest.mark.parametrize("seed", range(6))
def test_a_maximum_that_moves_makes_no_rank_slow(evaluate: Evaluate, seed: int) -> None:
    """Of two ranks one has a long sequence, by chance the same one in most of the newest steps."""
    lengths = random.Random(seed)
    longer = [lengths.randrange(2) for _ in range(120)]
    history = running(2, nodes=1, own=lambda r, s, rng: rng.gauss(200, 4) + (100 if r == longer[s] else 0), seed=seed)
    assert blamed(evaluate(history, ids=ID)) == set()


def test_a_rank_that_lost_its_lead_is_for_information(evaluate: Evaluate) -> None:
    """It was twice as fast as its peers until step 60, and is as they are since."""
    own = steady()
    e = evaluate(running(6, own=lambda r, s, rng: own(r, s, rng) - (10 if r == 1 and s < 60 else 0)), ids=ID)
    assert (e.status, [(f.id, f.severity) for f in e.findings]) == (Status.PASS, [("slower_than_itself", Severity.INFO)])


def test_all_together_slower_is_nobodys_fault(evaluate: Evaluate) -> None:
    found = only(evaluate(running(6, own=slowed(steady(), range(6), 12, since=70)), ids=ID))
    assert (found.id, found.ranks) == ("all_slower", ())


def test_stages_are_not_compared_with_each_other(evaluate: Evaluate) -> None:
    e = evaluate(staged(slowed(steady(), [3, 4, 5], 15)), ids=ID)
    assert (e.status, blamed(e)) == (Status.PASS, set())


def test_a_rank_alone_in_its_stage_is_compared_with_its_past(evaluate: Evaluate) -> None:
    found = only(evaluate(staged(slowed(steady(), [2], 15, since=90), dp=1, pp=4), ids=ID))
    assert (found.id, found.ranks) == ("slower_than_itself", (2,))


def test_more_tokens_are_data(evaluate: Evaluate) -> None:
    history = running(6, own=slowed(steady(), [1], 12), tokens=lambda r: 1500 if r == 1 else 1000)
    found = only(evaluate(history, ids=ID))
    assert (found.kind, found.ranks) == (Kind.DATA, (1,))


@pytest.mark.parametrize("phase", ["eval", "checkpoint"])
def test_evaluation_and_checkpoint_steps_are_silent(evaluate: Evaluate, phase: str) -> None:
    """The newest 20 steps held an evaluation on rank 0."""
    own = steady()
    history = running(
        6,
        own=lambda r, s, rng: own(r, s, rng) + (80 if r == 0 and s >= 100 else 0),
        phases=dict.fromkeys(range(100, 120), phase),
    )
    assert evaluate(history, ids=ID).status is Status.PASS


@pytest.mark.parametrize(
    ("history", "relative", "individual"),
    [
        (lambda: running(1, nodes=1), "alone", None),
        (lambda: running(6, timed=False), "timing", "timing"),
        (lambda: running(6, steps=12), "sample", "sample"),
        (lambda: running(6, steps=0), "sample", "sample"),
        (lambda: running(6, steps=30), None, "history"),
    ],
)
def test_gates_say_what_is_missing(
    evaluate: Evaluate, history: object, relative: str | None, individual: str | None
) -> None:
    made: History = history()  # type: ignore[operator]
    e = evaluate(made, ids=ID)
    assert (check(e, "relative").gate, check(e, "individual").gate) == (relative, individual)
    assert all(c.output for c in e.checks if c.gate)
    assert loud(e) == []


def test_ranks_that_do_not_answer_are_unknown_and_not_slow(evaluate: Evaluate) -> None:
    history = running(6)
    history.down = {1}
    e = evaluate(history, ids=ID)
    assert (e.status, blamed(e)) == (Status.UNKNOWN, set())


@needs_traces
@pytest.mark.parametrize(("name", "ranks"), [("AR", {0}), ("ST", set())])
def test_public_traces(evaluate: Evaluate, name: str, ranks: set[int]) -> None:
    assert blamed(evaluate(trace(name), ids=ID, min_coverage=0.2, step_window=10_000)) == ranks


@pytest.mark.parametrize(
    "make",
    [
        lambda: running(6, own=slowed(steady(), [4], 12, since=70), tokens=lambda r: 1000 + r),
        lambda: staged(steady()),
        lambda: running(3, steps=0),
        lambda: running(3, timed=False),
    ],
)
@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, make: object, down: tuple[int, ...]
) -> None:
    history: History = make()  # type: ignore[operator]
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
