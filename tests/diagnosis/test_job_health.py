"""What job_health concludes about synthetic histories of every kind of trouble, and of none, over three nodes."""

from __future__ import annotations

import random

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import (
    History,
    checkpointed,
    dead,
    finished,
    hanging,
    running,
    slowed,
    steady,
    waiting,
)
from muster.diagnosis.evaluation import Evaluation
from muster.diagnosis.report import http_status
from muster.model import Finding, Kind, Phase, RankStatus, Severity, Status


def loud(e: Evaluation) -> list[Finding]:
    return [f for f in e.findings if f.severity is not Severity.INFO]


def only(e: Evaluation) -> Finding:
    """The one finding that is not for information."""
    found = loud(e)
    assert len(found) == 1, [(f.id, f.message) for f in found]
    return found[0]


def check(e: Evaluation, name: str) -> tuple[Status, str | None]:
    found = next(c for c in e.checks if c.name == name)
    return found.status, found.gate


def assert_silent(e: Evaluation, phase: Phase = Phase.RUNNING) -> None:
    assert (e.status, e.phase, loud(e)) == (Status.PASS, phase, []), e.verdict.summary
    assert http_status(e) == 200


# What must stay silent


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("jitter", [0.02, 0.05])
def test_a_healthy_job_with_jitter_passes_and_is_silent(evaluate: Evaluate, jitter: float, seed: int) -> None:
    e = evaluate(running(own=steady(20, jitter), seed=seed))
    assert_silent(e)
    assert {c.status for c in e.checks} == {Status.PASS}
    assert e.recommendation == "none"
    assert e.waves == 2


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("jitter", [0.02, 0.05])
def test_256_ranks_with_jitter_are_silent(evaluate: Evaluate, jitter: float, seed: int) -> None:
    assert_silent(evaluate(running(256, own=steady(20, jitter), seed=seed)))


@pytest.mark.parametrize("seed", range(3))
def test_a_noisy_machine_with_rare_long_steps_is_silent(evaluate: Evaluate, seed: int) -> None:
    def own(rank: int, step: int, rng: random.Random) -> float:
        return rng.gauss(20, 0.6) + (rng.expovariate(1 / 15) if rng.random() < 0.02 else 0)

    assert_silent(evaluate(running(4, nodes=1, own=own, seed=seed)))


def test_a_long_checkpoint_is_a_phase_and_not_a_stall(evaluate: Evaluate) -> None:
    history = running(phases={60: "checkpoint"}, extra=lambda step: 5000.0 if step == 60 else 0.0)
    waiting(history, [1, 2, 3, 4, 5], 300, op="barrier")
    history.now(0).update(age_s=300.0, open_span="save", open_phase="checkpoint", open_span_age_s=300.0)
    checkpointed(history, 0, 60, 400.0)
    e = evaluate(history)
    assert_silent(e, Phase.CHECKPOINT)
    assert e.last_checkpoint is not None
    assert e.last_checkpoint.step == 60
    assert e.last_checkpoint.age_s == pytest.approx(400, abs=1)


def test_a_checkpoint_that_takes_longer_than_the_ceiling_is_a_stall(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, [1, 2, 3, 4, 5], 2000, op="barrier")
    history.now(0).update(age_s=2000.0, open_phase="checkpoint")
    assert only(evaluate(history)).ranks == (0,)


def test_an_evaluation_phase_is_silent(evaluate: Evaluate) -> None:
    history = running()
    for rank in range(6):
        history.now(rank).update(age_s=120.0, open_phase="eval", open_span="validate")
    assert_silent(evaluate(history), Phase.EVAL)


def test_an_evaluation_that_nobody_annotated_is_silent_while_it_computes(evaluate: Evaluate) -> None:
    history = running(extra=lambda step: 8000.0 if step % 40 == 39 else 0.0)
    for rank in range(6):
        history.now(rank).update(age_s=90.0, cpu_pct=98.0, state="R")
    assert_silent(evaluate(history))


def test_a_long_first_step_is_starting_and_not_a_stall(evaluate: Evaluate) -> None:
    history = running(steps=0)
    waiting(history, [1, 2, 3, 4, 5], 400)
    history.now(0).update(age_s=400.0)
    e = evaluate(history)
    assert (e.phase, e.status, loud(e)) == (Phase.STARTING, Status.UNKNOWN, [])
    assert check(e, "progress") == (Status.UNKNOWN, "starting")
    assert http_status(e) == 200


def test_polling_skew_at_10_ms_steps_is_not_lag(evaluate: Evaluate) -> None:
    history = running(own=steady(8, 0.03), comm_ms=2)
    for rank in (4, 5):  # asked 200 ms after the others: 20 steps ahead
        history.now(rank)["as_of_ns"] += 200_000_000
        history.now(rank)["last_global_step"] += 20
    assert_silent(evaluate(history))


def test_two_optimizers_counted_alike_everywhere_are_silent(evaluate: Evaluate) -> None:
    e = evaluate(running(counts=lambda rank: 2))
    assert_silent(e)
    assert e.findings == ()


def test_step_counts_in_a_whole_ratio_are_never_called_lag(evaluate: Evaluate) -> None:
    e = evaluate(running(counts=lambda rank: 2 if rank == 3 else 1))
    assert_silent(e)
    (told,) = e.findings
    assert (told.id, told.severity) == ("step_sources", Severity.INFO)
    assert "muster.probe.step()" in told.message
    assert check(e, "slowdown") == (Status.UNKNOWN, "sources")


def test_a_job_of_one_rank_passes(evaluate: Evaluate) -> None:
    e = evaluate(running(1, nodes=1, timed=False))
    assert_silent(e)
    assert check(e, "slowdown") == (Status.UNKNOWN, "alone")


def test_a_finished_job_passes_whatever_its_speed_was(evaluate: Evaluate) -> None:
    history = running(own=slowed(steady(), [2], 15))
    finished(history, range(6))
    e = evaluate(history)
    assert_silent(e, Phase.FINISHED)
    assert [(f.id, f.severity) for f in e.findings] == [("straggler", Severity.INFO)]


def test_a_finished_job_whose_agents_are_gone_has_still_finished(evaluate: Evaluate) -> None:
    history = running()
    finished(history, range(6))
    history.down = {1, 2}
    e = evaluate(history)
    assert (e.status, e.phase, loud(e)) == (Status.PASS, Phase.FINISHED, [])
    assert not e.coverage.complete


def test_a_finished_job_of_which_nobody_answers_is_unknown_and_still_finished(evaluate: Evaluate) -> None:
    history = running()
    finished(history, range(6))
    history.down = {0, 1, 2}
    e = evaluate(history)
    assert (e.status, e.phase, http_status(e)) == (Status.UNKNOWN, Phase.FINISHED, 200)


def test_a_job_that_ends_rank_by_rank_is_silent(evaluate: Evaluate) -> None:
    history = running()
    finished(history, [0, 1])
    waiting(history, [2, 3, 4, 5], 0.4, op="barrier")
    assert_silent(evaluate(history))


def test_stages_with_different_work_are_not_stragglers(evaluate: Evaluate) -> None:
    history = running(8, own=lambda r, s, rng: rng.gauss(20 if r < 4 else 21.5, 0.3))
    history.roles = {r: f"dp={r % 4},pp={r // 4},tp=0" for r in range(8)}
    assert_silent(evaluate(history))


def test_steps_held_up_by_a_recorded_checkpoint_do_not_count(evaluate: Evaluate) -> None:
    phases = dict.fromkeys(range(10, 120, 10), "checkpoint")
    e = evaluate(running(phases=phases, extra=lambda step: 900.0 if step in phases else 0.0))
    assert_silent(e)


# Slow


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rank", [0, 5])
def test_a_rank_slowed_by_15_ms_is_named_and_its_victims_apart(evaluate: Evaluate, rank: int, seed: int) -> None:
    e = evaluate(running(own=slowed(steady(20, 0.05), [rank], 15), seed=seed))
    found = only(e)
    assert (found.id, found.kind, found.ranks) == ("straggler", Kind.WORKER, (rank,))
    assert found.victims == tuple(r for r in range(6) if r != rank)
    assert found.hosts == (f"n{rank // 2}",)
    assert e.status in (Status.WARN, Status.FAIL)
    assert e.drain_candidates == ()
    assert found.evidence.rows[0][0] == rank


def test_a_rank_25_percent_slower_is_a_warning(evaluate: Evaluate) -> None:
    e = evaluate(running(8, own=slowed(steady(20, 0.03), [3], 5)))
    assert (e.status, only(e).ranks) == (Status.WARN, (3,))
    assert http_status(e) == 200


def test_what_a_straggler_costs_decides_between_warning_and_failure(evaluate: Evaluate) -> None:
    e = evaluate(running(8, own=slowed(steady(20, 0.03), [3], 30)))
    assert (e.status, only(e).ranks) == (Status.FAIL, (3,))
    assert http_status(e) == 503
    assert http_status(e, on_fail=200) == 200
    assert e.recommendation == "none"  # a slow job is not requeued


def test_both_of_two_stragglers_are_named(evaluate: Evaluate) -> None:
    assert only(evaluate(running(own=slowed(steady(), [1, 4], 15)))).ranks == (1, 4)


def test_the_slower_of_two_ranks_is_named(evaluate: Evaluate) -> None:
    assert only(evaluate(running(2, nodes=1, own=slowed(steady(), [1], 5)))).ranks == (1,)


def test_one_straggler_of_256_is_named(evaluate: Evaluate) -> None:
    assert only(evaluate(running(256, own=slowed(steady(20, 0.05), [200], 8)))).ranks == (200,)


def test_a_rank_with_more_tokens_is_data_and_not_a_bad_worker(evaluate: Evaluate) -> None:
    history = running(own=slowed(steady(), [2], 6), tokens=lambda rank: 1300 if rank == 2 else 1000)
    found = only(evaluate(history))
    assert (found.id, found.kind, found.ranks) == ("straggler", Kind.DATA, (2,))


def test_a_straggler_that_moves_blames_nobody(evaluate: Evaluate) -> None:
    def own(rank: int, step: int, rng: random.Random) -> float:
        return rng.gauss(20, 0.4) + (12 if step * 7 % 6 == rank else 0)

    found = only(evaluate(running(own=own)))
    assert (found.id, found.kind, found.ranks) == ("imbalance", Kind.DATA, ())


def test_a_slow_stage_is_named_as_a_stage_and_no_rank_is_blamed(evaluate: Evaluate) -> None:
    history = running(8, own=lambda r, s, rng: rng.gauss(20 if r < 4 else 30, 0.4))
    history.roles = {r: f"dp={r % 4},pp={r // 4},tp=0" for r in range(8)}
    found = only(evaluate(history))
    assert (found.id, found.kind, found.ranks) == ("imbalance", Kind.STAGE, ())


def test_a_uniform_slowdown_is_its_own_finding_without_culprits(evaluate: Evaluate) -> None:
    found = only(evaluate(running(extra=lambda step: 6.0 if step >= 60 else 0.0)))
    assert (found.id, found.kind, found.ranks) == ("pace_changed", Kind.WORKER, ())
    assert found.onset_step == 59
    assert found.observed == pytest.approx(29.7 / 23.7, rel=0.03)


def test_a_slower_exchange_is_a_change_of_the_network(evaluate: Evaluate) -> None:
    found = {f.id: f for f in loud(evaluate(running(comm=lambda s, rng: (3 if s < 60 else 9) * rng.uniform(0.97, 1.03))))}
    assert found["pace_changed"].kind is Kind.NETWORK
    assert all(f.ranks == () for f in found.values())


def test_a_job_that_speeds_up_is_no_trouble(evaluate: Evaluate) -> None:
    e = evaluate(running(extra=lambda step: 6.0 if step < 60 else 0.0))
    assert_silent(e)
    assert [f.id for f in e.findings] == ["pace_changed"]


def test_communication_that_takes_longer_and_longer_is_told(evaluate: Evaluate) -> None:
    e = evaluate(running(comm=lambda step, rng: (5 + step * 0.03) * rng.uniform(0.95, 1.05)))
    found = next(f for f in loud(e) if f.id == "comm_climbs")
    assert (found.kind, found.ranks, e.status) == (Kind.NETWORK, (), Status.WARN)


def test_a_baseline_is_compared_with_only_where_it_is_given(evaluate: Evaluate) -> None:
    assert_silent(evaluate(running()))
    assert_silent(evaluate(running(), baseline_step_ms=22))
    found = only(evaluate(running(), **{"job_health.baseline_step_ms": "20"}))
    assert (found.id, found.ranks) == ("below_baseline", ())


def test_without_communication_times_the_check_is_unknown_and_the_job_passes(evaluate: Evaluate) -> None:
    e = evaluate(running(own=slowed(steady(), [2], 15), timed=False))
    assert_silent(e)
    assert check(e, "slowdown") == (Status.UNKNOWN, "timing")
    assert check(e, "comm_trend") == (Status.UNKNOWN, "timing")
    assert any("muster run" in n for n in e.notes)


def test_fewer_than_20_steps_conclude_nothing_about_speed(evaluate: Evaluate) -> None:
    e = evaluate(running(steps=15, own=slowed(steady(), [2], 15)))
    assert_silent(e)
    assert check(e, "slowdown") == (Status.UNKNOWN, "sample")
    assert check(e, "pacing") == (Status.UNKNOWN, "sample")


def test_a_shorter_window_looks_at_the_newest_steps_only(evaluate: Evaluate) -> None:
    history = running(steps=200, own=lambda r, s, rng: rng.gauss(20, 0.4) + (15 if r == 2 and s < 100 else 0))
    assert_silent(evaluate(history, step_window=60))


# Stuck


@pytest.mark.parametrize("rank", [0, 3, 5])
def test_a_rank_that_holds_the_interpreter_is_named_by_one_request(evaluate: Evaluate, rank: int) -> None:
    history = running()
    hanging(history, rank, 20)
    e = evaluate(history)
    found = only(e)
    assert (found.id, found.kind, found.ranks, found.severity) == ("stalled", Kind.PROCESS, (rank,), Severity.WARN)
    assert found.victims == tuple(r for r in range(6) if r != rank)
    assert e.recommendation == "wait"
    names = [c.name for c in found.evidence.columns]
    first = dict(zip(names, found.evidence.rows[0], strict=True))
    second = dict(zip(names, found.evidence.rows[1], strict=True))
    assert (first["rank"], first["last_op"], first["inflight_op"]) == (rank, "all_reduce", None)
    assert (second["inflight_op"], second["inflight_seq"]) == ("all_reduce", 121)


def test_the_same_hang_is_a_failure_after_a_minute(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 3, 70)
    e = evaluate(history)
    assert (only(e).ranks, e.status, e.phase, http_status(e)) == ((3,), Status.FAIL, Phase.RUNNING, 503)
    assert e.recommendation == "requeue"


def test_a_pause_of_a_few_seconds_is_silent(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 3, 8)
    assert_silent(evaluate(history))


def test_slow_steps_raise_the_limit(evaluate: Evaluate) -> None:
    history = running(own=steady(3000))
    hanging(history, 3, 25)
    assert_silent(evaluate(history))
    hanging(history, 3, 35)
    assert only(evaluate(history)).ranks == (3,)


def test_a_stopped_process_is_a_failure_within_seconds(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 4, 7, state="T")
    e = evaluate(history)
    found = only(e)
    assert (found.id, found.ranks, found.severity, found.victims) == ("stopped", (4,), Severity.FAIL, (0, 1, 2, 3, 5))


def test_a_stopped_process_is_named_also_where_no_collective_in_flight_was_recorded(evaluate: Evaluate) -> None:
    history = running()
    for rank in range(6):
        history.now(rank).update(age_s=14.0, state="T" if rank == 1 else "S")
    found = only(evaluate(history))
    assert (found.id, found.ranks, found.victims) == ("stopped", (1,), (0, 2, 3, 4, 5))


def test_a_job_whose_every_process_is_stopped_is_suspended(evaluate: Evaluate) -> None:
    history = running()
    for rank in range(6):
        history.now(rank).update(age_s=500.0, state="T")
    e = evaluate(history)
    assert (e.phase, e.status, loud(e), http_status(e)) == (Phase.SUSPENDED, Status.UNKNOWN, [], 200)


def test_a_hang_without_recorded_collectives_names_the_rank_at_another_place(evaluate: Evaluate) -> None:
    history = running()
    for rank in range(6):
        history.now(rank).update(age_s=20.0, open_span="forward" if rank == 2 else "backward")
    found = only(evaluate(history))
    assert (found.id, found.ranks, found.severity) == ("stalled_apart", (2,), Severity.WARN)


def test_when_nobody_is_behind_nobody_is_blamed(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, range(6), 30)
    found = only(evaluate(history))
    assert (found.id, found.kind, found.ranks, found.severity) == ("stalled_symmetric", Kind.NETWORK, (), Severity.WARN)
    waiting(history, range(6), 90)
    assert only(evaluate(history)).severity is Severity.FAIL


def test_an_idle_job_in_no_collective_is_a_warning_without_culprits(evaluate: Evaluate) -> None:
    history = running()
    for rank in range(6):
        history.now(rank).update(age_s=100.0, cpu_pct=0.1)
    found = only(evaluate(history))
    assert (found.id, found.ranks, found.severity) == ("no_progress", (), Severity.WARN)


def test_a_wait_in_a_small_group_names_its_absent_member_only(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, [0, 1], 40, group=[0, 1, 2])
    waiting(history, [3, 4, 5], 40, group=[0, 3, 4, 5])
    history.now(2).update(age_s=40.1)
    found = only(evaluate(history))
    assert found.ranks == (2,)


def test_who_waits_for_a_peer_waits_for_nobody_else_of_the_group(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, [1], 40, op="recv", peer=0)
    for rank in (0, 2, 3, 4, 5):  # all at work outside of any recorded operation; only rank 0 is waited for
        history.now(rank).update(age_s=40.0)
    found = only(evaluate(history))
    assert (found.id, found.ranks) == ("stalled", (0,))


def test_a_chain_of_receives_ends_at_the_rank_that_does_not_send(evaluate: Evaluate) -> None:
    history = running()
    for rank in (1, 2, 3):
        waiting(history, [rank], 40, op="recv", peer=rank - 1)
    waiting(history, [4, 5], 40, group=[3, 4, 5])
    history.now(0).update(age_s=40.5)
    found = only(evaluate(history))
    assert (found.id, found.ranks) == ("stalled", (0,))
    assert found.victims == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("op", ["recv", "batch_isend_irecv"])
def test_a_wait_for_an_unknown_peer_is_no_evidence_against_anybody(evaluate: Evaluate, op: str) -> None:
    history = running()
    waiting(history, [1], 40, op=op)
    for rank in (0, 2, 3, 4, 5):
        history.now(rank).update(age_s=40.0)
    assert [f.id for f in loud(evaluate(history)) if f.ranks] == []


def test_a_peer_that_has_ended_while_another_waits_for_it_is_named(evaluate: Evaluate) -> None:
    history = running()
    finished(history, [0, 5])
    waiting(history, [1], 40, op="recv", peer=0)
    found = only(evaluate(history))
    assert (found.id, found.ranks) == ("early_exit", (0,))


def test_a_rank_in_another_collective_is_a_mismatch_of_the_minority(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, [0, 1, 2, 3, 4], 20)
    waiting(history, [5], 20, op="barrier")
    found = only(evaluate(history))
    assert (found.id, found.kind, found.ranks) == ("collective_mismatch", Kind.CODE, (5,))
    assert "barrier #121" in found.message


def test_a_mismatch_of_two_halves_blames_nobody(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, [0, 1, 2], 20)
    waiting(history, [3, 4, 5], 20, op="barrier")
    found = only(evaluate(history))
    assert (found.id, found.ranks) == ("collective_mismatch", ())
    assert found.victims == (0, 1, 2, 3, 4, 5)


def test_a_rank_that_ended_while_others_wait_for_it_is_named(evaluate: Evaluate) -> None:
    history = running()
    finished(history, [1])
    waiting(history, [0, 2, 3, 4, 5], 20)
    found = only(evaluate(history))
    assert (found.id, found.kind, found.ranks) == ("early_exit", Kind.CODE, (1,))


def test_a_rank_that_stands_still_while_an_asynchronous_job_goes_on_fails_by_lag(evaluate: Evaluate) -> None:
    history = running()
    now = history.now(2)
    now.update(last_global_step=79, last_local_step=80, age_s=30.0, last_row_ns=now["last_row_ns"] - 1_200_000_000)
    history.rows["python.torch_step_timing"][2] = history.rows["python.torch_step_timing"][2][:80]
    e = evaluate(history)
    found = next(f for f in e.findings if f.id == "step_lag")
    assert (found.ranks, found.severity, found.observed) == ((2,), Severity.FAIL, 40)


def test_a_rank_that_lags_but_moves_is_a_warning(evaluate: Evaluate) -> None:
    history = running()
    history.now(2).update(last_global_step=112, last_local_step=113)
    assert (only(evaluate(history)).severity, only(evaluate(history, step_lag_threshold=3)).ranks) == (Severity.WARN, (2,))
    assert_silent(evaluate(history, step_lag_threshold=10))


def test_lag_is_measured_within_a_role(evaluate: Evaluate) -> None:
    history = running()
    history.role_names = {r: "actor" if r < 3 else "learner" for r in range(6)}
    for rank in range(3):
        history.now(rank).update(last_global_step=40)
    assert_silent(evaluate(history))


# Dead


def test_a_killed_rank_is_the_first_death_and_the_waiting_are_victims(evaluate: Evaluate) -> None:
    history = running()
    dead(history, 4)
    waiting(history, [0, 1, 2, 3, 5], 20)
    e = evaluate(history)
    found = only(e)
    assert (found.id, found.kind, found.ranks, found.severity) == ("first_death", Kind.PROCESS, (4,), Severity.FAIL)
    assert found.victims == (0, 1, 2, 3, 5)
    assert (e.phase, http_status(e), e.recommendation) == (Phase.FAILED, 503, "requeue")
    assert found.onset_time is not None
    assert "SIGKILL" in found.message


def test_an_exception_is_the_first_death_even_if_a_victim_is_seen_gone_before_it(evaluate: Evaluate) -> None:
    history = running()
    dead(history, 1, after_s=2, exit_kind="exception", exit_signal=None, exit_message="RuntimeError: injected failure")
    for rank in (0, 3, 5):
        text = "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4711"
        dead(history, rank, after_s=2.5, exit_kind="exception", exit_signal=None, exit_message=text)
    dead(history, 2, after_s=1.5, exit_signal=15, exit_message="killed by SIGTERM")
    found = only(evaluate(history))
    assert (found.ranks, found.confidence) == ((1,), "high")
    assert "injected failure" in found.message
    assert set(found.victims) >= {0, 2, 3, 5}


def test_of_ranks_that_vanish_one_after_another_the_first_is_the_root(evaluate: Evaluate) -> None:
    history = running(nodes=1)
    dead(history, 3, after_s=5.0)
    for rank in (0, 1, 2, 4, 5):
        dead(history, rank, after_s=4.9, exit_kind="vanished", exit_signal=None, exit_message=None)
    assert only(evaluate(history)).ranks == (3,)


def test_deaths_on_two_hosts_within_a_second_are_named_together(evaluate: Evaluate) -> None:
    history = running()
    dead(history, 1, after_s=3.0)
    dead(history, 4, after_s=2.8)
    found = only(evaluate(history))
    assert (found.ranks, found.confidence) == ((1, 4), "low")


def test_ranks_that_are_killed_in_one_moment_are_named_together(evaluate: Evaluate) -> None:
    history = running(nodes=1)
    dead(history, 2, after_s=3.00)
    dead(history, 5, after_s=2.95)
    dead(history, 0, after_s=2.0, exit_kind="exception", exit_signal=None, exit_message="Connection reset by peer")
    found = only(evaluate(history))
    assert (found.ranks, found.confidence) == ((2, 5), "low")
    assert 0 in found.victims


def test_a_job_terminated_from_outside_blames_no_rank(evaluate: Evaluate) -> None:
    history = running()
    for rank in range(6):
        dead(history, rank, exit_signal=15, exit_message="killed by SIGTERM")
    e = evaluate(history)
    found = only(e)
    assert (found.id, found.ranks, e.status, e.phase) == ("deaths_without_root", (), Status.FAIL, Phase.FAILED)


def test_deaths_of_which_nobody_tells_any_more_name_no_first(evaluate: Evaluate) -> None:
    history = running()
    for rank in range(6):
        history.roster[rank] = RankStatus.DEAD
    history.down = {0, 1, 2}
    e = evaluate(history)
    found = next(f for f in e.findings if f.severity is Severity.FAIL)
    assert (found.id, found.ranks, e.status, e.phase) == ("deaths_without_root", (), Status.FAIL, Phase.FAILED)


def test_a_death_that_is_told_is_not_the_first_while_others_are_not(evaluate: Evaluate) -> None:
    history = running()
    dead(history, 4, exit_kind="exception", exit_signal=None, exit_message="RuntimeError: injected failure")
    history.roster |= {0: RankStatus.DEAD, 1: RankStatus.DEAD}
    history.down = {0}
    fails = [f for f in evaluate(history).findings if f.severity is Severity.FAIL]
    assert [(f.id, f.ranks) for f in fails] == [("deaths_without_root", ())]


def test_a_failure_that_the_roster_remembers_counts_when_its_agent_is_gone(evaluate: Evaluate) -> None:
    history = running()
    history.roster[3] = RankStatus.DEAD
    history.down = {1}
    e = evaluate(history)
    assert (e.status, e.phase) == (Status.FAIL, Phase.FAILED)


# Not covered


def test_a_node_that_does_not_answer_makes_unknown_of_pass(evaluate: Evaluate) -> None:
    history = running()
    history.down = {1}
    e = evaluate(history)
    found = only(e)
    assert (e.status, found.id, found.kind, found.ranks) == (Status.UNKNOWN, "not_covered", Kind.COVERAGE, (2, 3))
    assert (e.coverage.answered, e.coverage.complete) == (4, False)
    assert (http_status(e), e.recommendation) == (503, "wait")
    assert check(e, "liveness")[0] is Status.UNKNOWN


def test_a_node_that_does_not_answer_does_not_hide_a_straggler(evaluate: Evaluate) -> None:
    history = running(own=slowed(steady(), [5], 15))
    history.down = {0}
    e = evaluate(history)
    assert {f.id for f in loud(e)} == {"straggler", "not_covered"}
    assert next(f for f in e.findings if f.id == "straggler").ranks == (5,)


def test_fewer_ranks_than_all_can_be_allowed(evaluate: Evaluate) -> None:
    history = running()
    history.down = {1}
    e = evaluate(history, min_coverage=0.6)
    assert e.status is Status.PASS
    assert not e.coverage.complete
    assert any("min_coverage" in n for n in e.notes)
    assert evaluate(history, min_coverage=0.7).status is Status.UNKNOWN


def test_a_rank_that_never_joined_is_told(evaluate: Evaluate) -> None:
    history = running(steps=0)
    history.vanish(5)
    waiting(history, range(5), 30)
    e = evaluate(history)
    assert (e.status, e.phase, only(e).ranks) == (Status.UNKNOWN, Phase.STARTING, (5,))
    assert http_status(e) == 200


def test_a_rank_that_is_missing_while_the_others_wait_for_it_is_a_suspect_but_not_proven(evaluate: Evaluate) -> None:
    history = running()
    history.down = {2}
    waiting(history, range(4), 90)
    e = evaluate(history)
    found = next(f for f in e.findings if f.id == "stalled_unobserved")
    assert (found.kind, found.ranks, found.confidence, e.status) == (Kind.NODE, (4, 5), "low", Status.FAIL)
    assert [(c.host, c.action, c.ranks) for c in e.drain_candidates] == [("n2", "inspect", (4, 5))]
    assert e.recommendation == "requeue_excluding"


def test_a_job_that_never_started_is_unknown_and_starting(evaluate: Evaluate) -> None:
    history = running(4, nodes=2, steps=0)
    for rank in range(4):
        history.vanish(rank)
    e = evaluate(history)
    assert (e.status, e.phase, http_status(e)) == (Status.UNKNOWN, Phase.STARTING, 200)
    assert check(e, "liveness") == (Status.UNKNOWN, "no_rows")


def test_an_empty_roster_is_unknown_and_never_pass(evaluate: Evaluate) -> None:
    assert evaluate(History(0, 0, {"process.rank": {}})).status is Status.UNKNOWN


def test_a_job_that_counts_no_steps_is_judged_by_its_collectives(evaluate: Evaluate) -> None:
    history = running(steps=0)
    for rank in range(6):
        history.now(rank).update(last_op="all_reduce", last_pg="default_pg", last_seq=4000)
    e = evaluate(history)
    assert_silent(e)
    hanging(history, 2, 20)
    assert only(evaluate(history)).ranks == (2,)


def test_gaps_in_the_recording_are_told_for_information(evaluate: Evaluate) -> None:
    history = running()
    history.now(2).update(rows_lost=17, recorder_errors=2)
    e = evaluate(history)
    assert_silent(e)
    assert [(f.id, f.ranks) for f in e.findings] == [("rows_lost", (2,))]


def test_the_coordinator_alone_can_be_asked(evaluate: Evaluate) -> None:
    e = evaluate(running(), use_global="false")
    assert any("rank 0" in n for n in e.notes)
    assert check(e, "slowdown")[1] is not None
