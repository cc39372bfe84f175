"""persistent_straggler: the rank that is last on most steps, told apart from its stage, its data and its victims."""

from __future__ import annotations

import random

import pytest

from diagnosis.collectives import communicating, needs_traces, trace
from diagnosis.conftest import Evaluate
from diagnosis.histories import Cluster, History, OwnTime, running, slowed, steady
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.diagnosis.evaluation import Evaluation
from muster.model import Finding, Kind, Severity, Status

ID = ["persistent_straggler"]


def pipelined(own: OwnTime | None = None, *, p2p: bool = True, seed: int = 0) -> History:
    """dp4 pp2: ranks 0-3 are stage 0, 4-7 stage 1."""
    history = running(8, nodes=2, own=own, seed=seed)
    history.roles = {r: f"dp={r % 4},pp={r // 4},tp=0" for r in range(8)}
    communicating(history, [range(4), range(4, 8)], pg_name="dp", p2p=p2p)
    return history


def blamed(e: Evaluation) -> set[int]:
    return {r for f in e.findings for r in f.ranks}


def test_a_rank_that_is_always_late_is_named_and_its_peers_are_victims(evaluate: Evaluate) -> None:
    history = running(6, own=slowed(steady(), [4], 15))
    communicating(history)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.severity, found.kind, found.ranks) == ("persistent_straggler", Severity.FAIL, Kind.WORKER, (4,))
    assert found.victims == (0, 1, 2, 3, 5)
    assert found.hosts == ("n2",)
    assert found.observed == pytest.approx(1.0)


@pytest.mark.parametrize("slow", [0, 3, 5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ten_percent_are_a_warning(evaluate: Evaluate, slow: int, seed: int) -> None:
    history = running(6, own=slowed(steady(jitter=0.01), [slow], 2.5), seed=seed)
    communicating(history, calls=24)
    found = only(evaluate(history, ids=ID))
    assert (found.severity, found.ranks) == (Severity.WARN, (slow,))


@pytest.mark.parametrize("jitter", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("world", [2, 3, 8, 24])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_healthy_job_is_silent(evaluate: Evaluate, jitter: float, world: int, seed: int) -> None:
    history = running(world, nodes=1, own=steady(jitter=jitter), seed=seed)
    communicating(history)
    e = evaluate(history, ids=ID)
    assert e.status is Status.PASS, [(f.id, f.message) for f in e.findings]


def test_the_slower_of_two_is_named(evaluate: Evaluate) -> None:
    history = running(2, nodes=1, own=slowed(steady(), [1], 10))
    communicating(history)
    assert only(evaluate(history, ids=ID)).ranks == (1,)


def test_lateness_that_came_through_the_pipeline_is_not_blamed(evaluate: Evaluate) -> None:
    """Rank 5 is slow in its own stage; what it makes others wait for does not make another stage's rank a culprit."""
    found = only(evaluate(pipelined(slowed(steady(), [5], 12)), ids=ID))
    assert (found.kind, found.ranks) == (Kind.WORKER, (5,))


def test_without_sends_several_last_ranks_in_several_stages_are_an_ambiguous_root(evaluate: Evaluate) -> None:
    history = pipelined(slowed(steady(), [1, 5], 12), p2p=False)
    e = evaluate(history, ids=ID)
    found = only(e)
    assert (found.id, found.ranks, found.confidence) == ("root_ambiguous", (), "low")
    assert "1, 5" in found.message
    assert "dp=1" in found.message


def test_a_heavy_stage_is_a_stage_and_nobody_is_to_blame(evaluate: Evaluate) -> None:
    e = evaluate(pipelined(slowed(steady(), [4, 5, 6, 7], 10)), ids=ID)
    found = only(e)
    assert (found.id, found.kind, found.ranks) == ("stage_imbalance", Kind.STAGE, ())
    assert "stage 1 (ranks 4-7)" in found.message
    assert e.drain_candidates == ()


def test_a_heavy_stage_of_one_rank_is_not_held_against_that_rank(evaluate: Evaluate) -> None:
    history = running(4, nodes=2, own=slowed(steady(), [3], 10))
    history.roles = {r: f"dp=0,pp={r},tp=0" for r in range(4)}
    communicating(history)
    found = only(evaluate(history, ids=ID))
    assert (found.kind, found.ranks, found.confidence) == (Kind.STAGE, (), "low")


@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_moving_maximum_is_data(evaluate: Evaluate, world: int, seed: int) -> None:
    """Long sequences fall on another rank in every step."""
    lengths = random.Random(seed)
    longest = [lengths.randrange(world) for _ in range(200)]
    history = running(world, nodes=2, own=lambda r, s, rng: rng.gauss(20, 0.4) + (14 if r == longest[s] else 0), seed=seed)
    communicating(history)
    e = evaluate(history, ids=ID)
    assert (only(e).kind, blamed(e)) == (Kind.DATA, set())


@pytest.mark.parametrize("seed", range(6))
def test_a_moving_maximum_within_pairs_has_no_owner(evaluate: Evaluate, seed: int) -> None:
    """Of the two members of a pair, one is last in half of the steps by chance alone."""
    lengths = random.Random(seed)
    longest = [lengths.randrange(4) for _ in range(120)]
    history = running(4, nodes=2, own=lambda r, s, rng: rng.gauss(20, 0.4) + (10 if r == longest[s] else 0), seed=seed)
    communicating(history, [[0, 1], [2, 3]], pg_name="pair")
    assert blamed(evaluate(history, ids=ID)) == set()


def test_a_straggler_that_moves_on_every_thirty_steps_has_no_owner(evaluate: Evaluate) -> None:
    history = running(6, own=lambda r, s, rng: rng.gauss(20, 0.4) + (14 if r == s // 30 % 4 else 0))
    communicating(history)
    e = evaluate(history, ids=ID, step_window=120)
    assert (only(e).kind, blamed(e)) == (Kind.DATA, set())


@pytest.mark.parametrize("by", ["tokens", "bytes"])
def test_a_rank_with_more_work_is_data(evaluate: Evaluate, by: str) -> None:
    """A hot expert: the same rank in every step, with 12 % more tokens or bytes."""
    more = {r: 1120 if r == 2 else 1000 for r in range(6)}
    history = running(6, own=slowed(steady(), [2], 12), tokens=more.__getitem__ if by == "tokens" else None)
    communicating(history, op="all_to_all_single", sized=more.__getitem__ if by == "bytes" else lambda rank: 1000)
    found = only(evaluate(history, ids=ID))
    assert (found.kind, found.ranks) == (Kind.DATA, (2,))


def test_eight_percent_more_tokens_are_the_same_work(evaluate: Evaluate) -> None:
    history = running(6, own=slowed(steady(), [2], 12), tokens=lambda r: 1080 if r == 2 else 1000)
    communicating(history)
    assert only(evaluate(history, ids=ID)).kind is Kind.WORKER


@pytest.mark.parametrize("op", ["broadcast", "gather", "scatter", "reduce", "send", "recv"])
def test_rooted_operations_have_no_last_arriver(evaluate: Evaluate, op: str) -> None:
    """The root of a broadcast waits least by its nature."""
    history = running(6)
    communicating(history)
    rows = history.rows["python.comm_collective"]
    for rank in range(6):
        rows[rank] += [
            r | {"op": op, "blocked_ms": 0.1 if rank == 0 else 8.0, "duration_ms": 8.0} for r in list(rows[rank])
        ]
    assert evaluate(history, ids=ID).status is Status.PASS


@pytest.mark.parametrize("bytes_of_one", [1 << 20, 1 << 18])
def test_the_shortest_all_to_all_alone_blames_nobody(evaluate: Evaluate, bytes_of_one: int) -> None:
    """Uneven splits: rank 3 is through its exchange early in every step, and waits for the others in what follows."""
    history = running(6)
    communicating(history)
    rows = history.rows["python.comm_collective"]
    for rank in range(6):
        early = rank == 3
        rows[rank] += [
            r
            | {"op": "all_to_all_single", "pg_name": "experts", "blocked_ms": 0.2 if early else 3.0, "occurrence": 0}
            | {"bytes": bytes_of_one if early else 1 << 20}
            for r in list(rows[rank])
        ]
    e = evaluate(history, ids=ID)
    assert (e.status, blamed(e)) == (Status.PASS, set())


def test_with_rooted_operations_only_nothing_is_concluded(evaluate: Evaluate) -> None:
    history = running(6, own=slowed(steady(), [4], 15))
    communicating(history, op="broadcast")
    e = evaluate(history, ids=ID)
    assert check(e, "straggler").gate == "groups"
    assert blamed(e) == set()


def test_the_same_name_with_other_members_is_another_group(evaluate: Evaluate) -> None:
    """Two groups named alike: 0-2 are quick, 3-5 slow in compute alike. Together the least waits would all be 3-5's."""
    history = running(6)
    communicating(history, [range(3)], pg_name="sub", p2p=False)
    communicating(history, [range(3, 6)], pg_name="sub", p2p=False)
    for rank in range(3):
        for row in history.rows["python.comm_collective"][rank]:
            row["blocked_ms"] += 3
    e = evaluate(history, ids=ID)
    assert e.status is Status.PASS
    step = next(s for s in e.steps if s.name == "last_arrivals")
    assert step.table is not None
    assert {(r["group_size"], r["group_steps"]) for r in step.table.to_pylist()} == {(3, 100)}
    assert len({r["members"] for r in step.table.to_pylist()}) == 2


def test_a_checkpoint_thread_does_not_count(evaluate: Evaluate) -> None:
    """An asynchronous checkpoint gathers on the same group from a thread of its own, for which rank 3 never waits."""
    history = running(6)
    communicating(history)
    rows = history.rows["python.comm_collective"]
    for rank in range(6):
        rows[rank] += [
            r | {"thread_id": 9000 + rank, "blocked_ms": 0.0 if rank == 3 else 15.0, "bytes": 10 * (rank + 1)}
            for r in list(rows[rank])
            if r["global_step"] % 4 == 0
        ]
    assert evaluate(history, ids=ID).status is Status.PASS


@pytest.mark.parametrize("phase", ["eval", "checkpoint", "warmup"])
def test_steps_with_evaluation_or_checkpoint_are_left_out(evaluate: Evaluate, phase: str) -> None:
    """In half of the steps rank 0 alone evaluates or saves: it is last there, and that is no fault."""
    special = dict.fromkeys(range(0, 200, 2), phase)
    history = running(
        6, steps=200, own=lambda r, s, rng: rng.gauss(20, 0.4) + (60 if r == 0 and s % 2 == 0 else 0), phases=special
    )
    communicating(history)
    assert evaluate(history, ids=ID).status is Status.PASS


def test_launch_times_are_no_waiting(evaluate: Evaluate) -> None:
    history = running(6, own=slowed(steady(), [4], 15))
    communicating(history, source="enqueue")
    e = evaluate(history, ids=ID)
    assert check(e, "straggler").gate == "groups"
    assert blamed(e) == set()


@pytest.mark.parametrize(
    ("history", "gate"),
    [
        (lambda: running(1, nodes=1), "alone"),
        (lambda: running(6, timed=False), "timing"),
        (lambda: running(6, steps=12), "sample"),
        (lambda: running(6, steps=0), "sample"),
        (lambda: running(6), "groups"),
    ],
)
def test_what_cannot_be_concluded_is_unknown_and_names_the_way(evaluate: Evaluate, history: object, gate: str) -> None:
    made: History = history()  # type: ignore[operator]
    e = evaluate(made, ids=ID)
    found = check(e, "straggler")
    assert (found.status, found.gate) == (Status.UNKNOWN, gate)
    assert found.output
    assert loud(e) == []


def test_a_member_that_does_not_answer_stops_its_groups(evaluate: Evaluate) -> None:
    history = running(6, own=slowed(steady(), [4], 15))
    communicating(history)
    history.down = {0}
    e = evaluate(history, ids=ID)
    assert blamed(e) == set()
    assert check(e, "straggler").gate == "groups"


def test_only_the_worse_of_two_late_ranks_is_named_as_the_root(evaluate: Evaluate) -> None:
    found: Finding = only(evaluate(pipelined(lambda r, s, rng: rng.gauss(20, 0.3) + {1: 12.0, 6: 6.0}.get(r, 0.0)), ids=ID))
    assert found.ranks == (1,)
    assert "late behind it: 6" in found.message


def test_where_the_work_is_not_recorded_the_message_does_not_say_that_it_is_the_same(evaluate: Evaluate) -> None:
    history = running(6, own=slowed(steady(), [4], 15))
    communicating(history, bytes=None)
    found = only(evaluate(history, ids=ID))
    assert (found.kind, found.ranks, found.confidence) == (Kind.WORKER, (4,), "medium")
    assert "by ?)" in found.message


@needs_traces
def test_on_the_public_trace_of_a_slow_worker_it_alone_is_named(evaluate: Evaluate) -> None:
    e = evaluate(trace("AR"), ids=ID, min_coverage=0.2, step_window=10_000)
    found = only(e)
    assert (found.severity, found.kind, found.ranks) == (Severity.FAIL, Kind.WORKER, (0,))
    slowdown = next(s for s in e.steps if s.name == "job_slowdown_proxy").table
    assert slowdown is not None
    assert slowdown.column("slowdown")[0].as_py() == pytest.approx(1.973, rel=0.1)


@needs_traces
def test_on_the_public_trace_of_a_heavy_stage_nobody_is_blamed(evaluate: Evaluate) -> None:
    e = evaluate(trace("ST"), ids=ID, step_window=10_000)
    found = only(e)
    assert (found.kind, found.ranks, e.drain_candidates) == (Kind.STAGE, (), ())
    assert "stage 3 (ranks 6, 7)" in found.message
    assert found.observed == pytest.approx(1.179, rel=0.1)


def _gaps() -> History:
    history = running(7, nodes=3, own=slowed(steady(), [2], 8), tokens=lambda r: 900 + r)
    history.roles = {r: f"dp={r % 4},pp={r // 4},tp=0" for r in range(7)}
    communicating(history)
    communicating(history, [range(4), range(4, 7)], pg_name="dp")
    history.vanish(6)
    return history


@pytest.mark.parametrize("make", [pipelined, _gaps, lambda: running(3, steps=0)])
@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, make: object, down: tuple[int, ...]
) -> None:
    history: History = make()  # type: ignore[operator]
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
