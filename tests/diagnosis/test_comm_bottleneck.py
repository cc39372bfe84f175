"""comm_bottleneck: what communication costs the step, in which operations, and whether groups of a kind are alike."""

from __future__ import annotations

import pytest

from diagnosis.collectives import communicating, needs_traces, trace
from diagnosis.conftest import Evaluate
from diagnosis.histories import Cluster, History, running, slowed, steady
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, named, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.diagnosis.evaluation import Evaluation
from muster.model import Kind, Status

ID = ["comm_bottleneck"]


def grouped(*, slow: float = 1.0, ranks: range = range(4, 8), comm_ms: float = 8.0) -> History:
    """Two groups of four ranks; the exchange of one of them takes `slow` times as long."""
    history = running(8, nodes=2, comm_ms=comm_ms)
    communicating(history, [range(4), range(4, 8)], pg_name="dp", p2p=False, calls=1)
    for rank in range(8):
        for row in history.rows["python.comm_collective"][rank]:
            row["duration_ms"] = row["blocked_ms"] = 2.0 * (slow if rank in ranks else 1.0)
    return history


def blamed(e: Evaluation) -> set[int]:
    return {r for f in e.findings for r in f.ranks}


def test_communication_that_compute_hides_is_a_pass(evaluate: Evaluate) -> None:
    e = evaluate(grouped(comm_ms=2.0), ids=ID)
    assert (e.status, loud(e)) == (Status.PASS, [])


def test_slow_transfer_is_the_networks(evaluate: Evaluate) -> None:
    history = running(6, comm_ms=15)
    communicating(history)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.kind, found.ranks) == ("exposed_communication", Kind.NETWORK, ())
    assert 0.35 < float(found.observed or 0) < 0.5
    assert found.onset_step is not None


def test_waiting_for_a_slow_rank_is_not_the_networks(evaluate: Evaluate) -> None:
    """The longest durations are the victims'; nobody is named here, and the way leads to who can name."""
    history = running(6, own=slowed(steady(), [2], 20))
    communicating(history)
    e = evaluate(history, ids=ID)
    found = only(e)
    assert (found.kind, blamed(e), found.next) == (Kind.WORKER, set(), ("persistent_straggler",))


def test_waits_of_the_pipeline_are_told_apart(evaluate: Evaluate) -> None:
    history = running(8, nodes=2, comm_ms=15)
    communicating(history, [range(4), range(4, 8)], pg_name="dp")
    assert only(evaluate(history, ids=ID)).kind is Kind.STAGE


def test_a_group_far_below_its_kind_is_named_as_a_group(evaluate: Evaluate) -> None:
    e = evaluate(grouped(slow=3), ids=ID)
    found = named(e, "slow_group")
    assert (found.kind, found.ranks) == (Kind.NETWORK, ())
    assert "ranks 4, 5, 6, 7" in found.message
    assert found.observed == pytest.approx(1 / 3)


def test_a_group_is_as_quick_as_its_last_arriver_sees_it(evaluate: Evaluate) -> None:
    """Three of four ranks wait long for the fourth: that is no lack of bandwidth."""
    e = evaluate(grouped(slow=3, ranks=range(4, 7)), ids=ID)
    assert "slow_group" not in {f.id for f in e.findings}
    assert check(e, "bandwidth").observed == pytest.approx(1.0)


def test_a_group_over_more_hosts_is_of_another_kind(evaluate: Evaluate) -> None:
    history = running(8, nodes=4, comm_ms=8)
    communicating(history, [[0, 1], [2, 4]], pg_name="dp", p2p=False, calls=1)
    for rank in (0, 1, 2, 4):
        for row in history.rows["python.comm_collective"][rank]:
            row["duration_ms"] = row["blocked_ms"] = 6.0 if rank in (2, 4) else 1.0
    assert check(evaluate(history, ids=ID), "bandwidth").gate == "one_of_a_kind"


def test_the_same_name_with_other_members_is_another_group(evaluate: Evaluate) -> None:
    step = next(s for s in evaluate(grouped(), ids=ID).steps if s.name == "operations")
    assert step.table is not None
    assert [(r["pg_name"], r["ranks"], r["alike"]) for r in step.table.to_pylist()] == [("dp", 4, 2), ("dp", 4, 2)]


def test_what_happened_once_is_spread_over_the_steps(evaluate: Evaluate) -> None:
    """An exchange of 300 ms at the start costs 3 ms a step over 100 steps, not many times the step."""
    history = running(6)
    communicating(history)
    for rows in history.rows["python.comm_collective"].values():
        rows.append(rows[-1] | {"op": "all_gather_coalesced", "blocked_ms": 300.0, "duration_ms": 300.0})
    e = evaluate(history, ids=ID, step_window=100)
    assert next(float(f.observed or 0) for f in e.findings if f.message.startswith("all_gather")) == pytest.approx(
        0.12, abs=0.02
    )


def test_operations_of_a_root_are_not_compared(evaluate: Evaluate) -> None:
    history = grouped(slow=5)
    for rows in history.rows["python.comm_collective"].values():
        for row in rows:
            row["op"] = "broadcast"
    e = evaluate(history, ids=ID)
    assert check(e, "bandwidth").gate == "one_of_a_kind"


def test_asynchronous_calls_say_nothing_of_bandwidth(evaluate: Evaluate) -> None:
    history = grouped(slow=5)
    for rows in history.rows["python.comm_collective"].values():
        for row in rows:
            row |= {"async_op": 1, "timing_source": "wait"}
    e = evaluate(history, ids=ID)
    assert "slow_group" not in {f.id for f in e.findings}


@pytest.mark.parametrize("phase", ["eval", "checkpoint"])
def test_evaluation_is_silent(evaluate: Evaluate, phase: str) -> None:
    history = running(
        6, comm_ms=2, comm=lambda s, rng: 200.0 if s % 2 else 2.0, phases=dict.fromkeys(range(1, 120, 2), phase)
    )
    assert loud(evaluate(history, ids=ID)) == []


@pytest.mark.parametrize(
    ("make", "exposed", "bandwidth"),
    [
        (lambda: running(6, timed=False), "timing", "timing"),
        (lambda: running(6, steps=12), "sample", "timing"),
        (lambda: running(6), None, "timing"),
    ],
)
def test_gates_say_what_is_missing(evaluate: Evaluate, make: object, exposed: str | None, bandwidth: str) -> None:
    history: History = make()  # type: ignore[operator]
    e = evaluate(history, ids=ID)
    assert (check(e, "exposed").gate, check(e, "bandwidth").gate) == (exposed, bandwidth)
    assert all(c.output for c in e.checks if c.gate)
    assert loud(e) == []


def test_only_enqueued_calls_are_no_communication_time(evaluate: Evaluate) -> None:
    history = running(6, timed=False)
    communicating(history, source="enqueue")
    e = evaluate(history, ids=ID)
    assert [c.gate for c in e.checks] == ["timing", "timing"]


@needs_traces
@pytest.mark.parametrize(("name", "kind"), [("AR", Kind.WORKER), ("ST", Kind.STAGE)])
def test_public_traces(evaluate: Evaluate, name: str, kind: Kind) -> None:
    e = evaluate(trace(name), ids=ID, min_coverage=0.2, step_window=10_000)
    assert (only(e).kind, blamed(e)) == (kind, set())


@pytest.mark.parametrize("make", [grouped, lambda: running(3, steps=0), lambda: running(6, timed=False)])
@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, make: object, down: tuple[int, ...]
) -> None:
    history: History = make()  # type: ignore[operator]
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
