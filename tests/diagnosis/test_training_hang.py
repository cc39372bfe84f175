"""Nobody moves: since when, who is waited for, where that rank stands. The first request concludes."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import NOW_NS, Cluster, History, dead, finished, hanging, running, waiting
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, named, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.model import Kind, Phase, Severity, Status

ID = ("training_hang",)
LOADER = [
    ("_try_get_data", "/usr/lib/python3/torch/utils/data/dataloader.py"),
    ("_get_data", "/usr/lib/python3/torch/utils/data/dataloader.py"),
    ("__next__", "/usr/lib/python3/torch/utils/data/dataloader.py"),
    ("main", "/app/train.py"),
]
CHECKPOINT = [
    ("write", "/lib/python3/io.py"),
    ("save", "/lib/torch/serialization.py"),
    ("save_checkpoint", "/app/train.py"),
]
LOCK = [("acquire", "/usr/lib/python3.11/threading.py"), ("log", "/app/metrics.py"), ("main", "/app/train.py")]
LOOP = [("tokenise_forever", "/app/words.py"), ("main", "/app/train.py")]
CODE = [("sum_of_squares", "/app/norm.py"), ("main", "/app/train.py")]
COLLECTIVE = [("all_reduce", "/lib/torch/distributed/distributed_c10d.py"), ("main", "/app/train.py")]


def stack(
    history: History, rank: int, frames: list[tuple[str, str]], *, ago_s: float = 1.0, thread: str = "MainThread"
) -> None:
    rows = history.rows.setdefault("python.backtrace", {}).setdefault(rank, [])
    tid = 1000 + rank if thread == "MainThread" else 5000 + rank
    for depth, (func, file) in enumerate(frames):
        rows.append(
            {
                "tid": tid, "thread_name": thread, "depth": depth, "frame_type": "python", "func": func, "file": file,
                "lineno": 10 + depth, "ts": NOW_NS - int(ago_s * 1e9),
            }
        )  # fmt: skip


def test_a_job_that_moves_passes(evaluate: Evaluate) -> None:
    e = evaluate(running(), ids=ID)
    assert (e.status, loud(e), e.waves) == (Status.PASS, [], 1)
    assert check(e, "moves").status is Status.PASS
    assert check(e, "stacks").gate == "not_recorded"


@pytest.mark.parametrize(
    ("frames", "kind", "place"),
    [
        (LOADER, Kind.DATA, "loader"), (CHECKPOINT, Kind.STORAGE, "checkpoint"), (LOCK, Kind.PROCESS, "lock"),
        (CODE, Kind.CODE, "code"),
    ],
)  # fmt: skip
def test_the_first_request_says_who_is_waited_for_and_where_it_stands(
    evaluate: Evaluate, frames: list[tuple[str, str]], kind: Kind, place: str
) -> None:
    history = running()
    hanging(history, 3, 120)
    for rank in range(6):
        for ago_s in (1, 6):
            stack(history, rank, frames if rank == 3 else COLLECTIVE, ago_s=ago_s)
    e = evaluate(history, ids=ID)
    found = only(e)
    assert (found.id, found.ranks, found.kind, found.severity) == ("hang", (3,), kind, Severity.FAIL)
    assert found.victims == (0, 1, 2, 4, 5)
    assert f"stands in {place} ({frames[0][0]}" in found.message
    assert found.onset_time is not None
    assert (NOW_NS / 1e9 - found.onset_time.timestamp()) == pytest.approx(120, abs=1)
    assert (named(e, "suspect_stack").ranks, named(e, "suspect_stack").confidence) == ((3,), "high")
    assert e.drain_candidates == ()


def test_without_stacks_the_open_span_says_where(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 3, 120, open_span="data", open_phase="data")
    found = only(evaluate(history, ids=ID))
    assert (found.ranks, found.kind) == ((3,), Kind.DATA)
    assert "stands in loader (data)" in found.message


def test_without_stacks_and_spans_the_kernel_function_says_where(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 3, 120, open_span=None, wchan="nfs_wait_bit_killable", state="D")
    found = only(evaluate(history, ids=ID))
    assert (found.ranks, found.kind) == ((3,), Kind.STORAGE)
    assert "nfs_wait_bit_killable" in found.message


def test_stacks_of_other_threads_do_not_speak_for_the_main_thread(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 3, 120)
    stack(history, 3, CHECKPOINT, thread="async-save")
    stack(history, 3, LOCK)
    assert only(evaluate(history, ids=ID)).kind is Kind.PROCESS


def test_only_the_newest_stack_counts(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 3, 120)
    stack(history, 3, LOADER, ago_s=60)
    stack(history, 3, LOCK, ago_s=1)
    e = evaluate(history, ids=ID)
    assert only(e).kind is Kind.PROCESS
    assert named(e, "suspect_stack").confidence == "medium"


def test_two_suspects_at_two_places_are_told_apart(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, [0, 1, 2, 5], 120)
    for rank, frames in ((3, LOADER), (4, CHECKPOINT)):
        history.now(rank).update(age_s=120.0, cpu_pct=0.0)
        stack(history, rank, frames)
    found = loud(evaluate(history, ids=ID))
    assert {(f.ranks, f.kind) for f in found} == {((3,), Kind.DATA), ((4,), Kind.STORAGE)}


def test_a_young_stall_is_a_warning_and_a_wait_of_a_second_is_nothing(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 3, 20)
    assert only(evaluate(history, ids=ID)).severity is Severity.WARN
    history = running()
    hanging(history, 3, 1)
    assert loud(evaluate(history, ids=ID)) == []


def test_a_stopped_process(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 2, 20, state="T")
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.confidence) == ("hang_stopped", (2,), "high")


def test_ranks_that_wait_for_a_dead_one_are_victims_and_nobody_else_is_blamed(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, [0, 1, 2, 3, 5], 30)
    dead(history, 4, after_s=30)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.victims) == ("hang_after_death", (), (0, 1, 2, 3, 5))
    assert found.next == ("crash_triage",)


def test_a_rank_that_ended_cleanly_is_named(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, [0, 1, 2, 3, 4], 100)
    finished(history, [5])
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.kind) == ("hang_after_exit", (5,), Kind.CODE)


def test_another_operation_on_one_rank_is_a_mismatch(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, [0, 1, 2, 3, 5], 100)
    waiting(history, [4], 100, op="broadcast")
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.kind, found.confidence) == ("hang_mismatch", (4,), Kind.CODE, "high")


def test_all_in_one_operation_and_none_behind_is_the_network_and_nobody(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, range(6), 100)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.kind) == ("hang_symmetric", (), Kind.NETWORK)


def test_groups_that_do_not_meet_may_all_wait_and_that_is_symmetric(evaluate: Evaluate) -> None:
    history = running()
    for group in ([0, 2, 4], [1, 3, 5]):
        waiting(history, group, 100, group=group)
    assert only(evaluate(history, ids=ID)).id == "hang_symmetric"


def test_groups_entered_in_different_orders_are_a_cycle_and_nobody(evaluate: Evaluate) -> None:
    """Pipeline groups shared with point-to-point: 0 waits for 1 in group a, 1 for 0 in group b."""
    history = running(2, nodes=1)
    for rank, group in ((0, "a"), (1, "b")):
        waiting(history, [rank], 100, group=[0, 1])
        history.now(rank).update(inflight_pg=group, last_pg="default_pg")
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.victims, found.kind) == ("hang_cycle", (), (0, 1), Kind.CODE)


def test_a_node_that_does_not_answer_is_suspected_and_never_drained(evaluate: Evaluate) -> None:
    history = running()
    waiting(history, [0, 1, 2, 3], 100)
    history.down = {2}
    e = evaluate(history, ids=ID)
    found = named(e, "hang_unobserved")
    assert (found.ranks, found.kind, found.confidence) == ((4, 5), Kind.NODE, "low")
    assert [c.action for c in e.drain_candidates] == ["inspect"]


def test_without_collectives_the_minority_stands_apart(evaluate: Evaluate) -> None:
    history = running()
    for rank in range(6):
        history.now(rank).update(age_s=100.0, cpu_pct=0.0, open_span="data" if rank == 2 else "barrier")
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks) == ("hang_apart", (2,))


def test_all_idle_outside_collectives_says_where_and_blames_nobody(evaluate: Evaluate) -> None:
    history = running()
    for rank in range(6):
        history.now(rank).update(age_s=100.0, cpu_pct=0.0)
        for ago_s in (1, 6):
            stack(history, rank, LOADER, ago_s=ago_s)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.kind, found.severity) == ("hang_idle", (), Kind.DATA, Severity.WARN)
    assert "6 of 6 stand in loader" in found.message


def test_idle_ranks_whose_stacks_change_are_silent(evaluate: Evaluate) -> None:
    history = running()
    for rank in range(6):
        history.now(rank).update(age_s=100.0, cpu_pct=1.0)
        stack(history, rank, LOADER, ago_s=6)
        stack(history, rank, LOOP, ago_s=1)
    assert loud(evaluate(history, ids=ID)) == []


@pytest.mark.parametrize("phase", ["checkpoint", "eval", "compile"])
def test_a_long_phase_that_is_annotated_is_silent(evaluate: Evaluate, phase: str) -> None:
    history = running()
    waiting(history, [1, 2, 3, 4, 5], 300)
    history.now(0).update(age_s=300.0, open_phase=phase, open_span=phase)
    assert loud(evaluate(history, ids=ID)) == []


def test_before_the_first_step_it_cannot_tell_and_says_so(evaluate: Evaluate) -> None:
    e = evaluate(running(steps=0), ids=ID)
    assert (e.status, e.phase, check(e, "moves").gate) == (Status.UNKNOWN, Phase.STARTING, "starting")


def test_nobody_answers(evaluate: Evaluate) -> None:
    history = running()
    history.down = {0, 1, 2}
    e = evaluate(history, ids=ID)
    assert (e.status, check(e, "moves").gate) == (Status.UNKNOWN, "no_rows")


def test_no_stack_of_a_suspect_closes_the_check_of_stacks_only(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 3, 120)
    history.rows["python.backtrace"] = {}
    e = evaluate(history, ids=ID)
    assert (e.status, check(e, "stacks").gate) == (Status.FAIL, "no_stacks")


def test_the_texts_exist_in_chinese(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 3, 120)
    assert "没有进展" in only(evaluate(history, ids=ID, lang="zh")).message


@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, down: tuple[int, ...]
) -> None:
    history = running()
    hanging(history, 3, 120)
    rows: dict[str, Any] = history.rows
    for rank in range(6):
        for ago_s in (1, 6, 11):
            stack(history, rank, CODE if rank == 3 and ago_s == 6 else LOADER, ago_s=ago_s)
        stack(history, rank, LOCK, thread="pin_memory")
        rows["python.comm_collective"][rank] = [
            {"op": "all_reduce", "seq": s, "pg_name": "p", "start_ns": NOW_NS - 100 + s, "rank": rank} for s in range(12)
        ]
        rows["python.trace_event"][rank] = [
            {"record_type": kind, "span_id": s, "name": f"s{s}", "time": NOW_NS + s, "thread_id": 1, "rank": rank}
            for s in range(14)
            for kind in ("span_start", "span_end")
            if kind == "span_start" or s % 4
        ]
        rows["cpu.utilization"][rank] = [
            {"scope": "thread", "tid": t, "state": "D" if t % 2 else "S", "wchan": f"w{k}", "ts": NOW_NS // 1000 + k}
            for t in range(4)
            for k in range(3)
        ]
    history.down = set(down)
    e = evaluate(history, ids=ID)
    assert_steps_equal_one_duckdb(e, catalogue, cluster, history)
    lengths = {s.name: s.table.num_rows for s in e.steps if s.table is not None}
    ranks = 6 - 2 * len(down)
    assert lengths == {
        "cluster_snapshot": 6, "in_flight": 8 * ranks, "open_spans": 4 * ranks, "stacks": ranks,
        "blocked_threads": 2 * ranks,
    }  # fmt: skip
