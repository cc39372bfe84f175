"""Who died first, of what, and who only followed."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import NOW_NS, Cluster, History, dead, finished, running, waiting
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, named, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.diagnosis.evaluation import Evaluation
from muster.model import Kind, RankStatus, Severity, Status

ID = ("crash_triage",)
VICTIM = "RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:41225"


def operation(history: History, rank: int, seq: int, op: str = "all_reduce", **more: Any) -> None:
    row = {
        "rank": rank, "op": op, "pg_name": "default_pg", "seq": seq, "global_step": seq // 2, "tensor_shape": "[1024]",
        "tensor_dtype": "float32", "bytes": 4096, "start_ns": NOW_NS - 10_000_000_000 + seq * 1_000_000 + rank,
        "end_ns": None, "participate_ranks": str(list(range(history.world))),
    }  # fmt: skip
    history.rows["python.comm_collective"].setdefault(rank, []).append(row | more)


def kernel(history: History, node: int, message: str, ago_s: float = 3.0) -> None:
    row = {"timestamp": NOW_NS // 1000 - int(ago_s * 1e6), "facility": "kern", "level": "err", "message": message}
    history.rows.setdefault("process.kmsg", {}).setdefault(node, []).append(row)


def in_step() -> History:
    """Six ranks with their last operations, and a kernel log that somebody reads."""
    history = running(6, steps=60)
    history.rows["process.kmsg"] = {}
    for rank in range(6):
        for seq in range(40, 50):
            operation(history, rank, seq)
    return history


def test_nobody_died(evaluate: Evaluate) -> None:
    e = evaluate(in_step(), ids=ID)
    assert (e.status, loud(e)) == (Status.PASS, [])
    assert {c.status for c in e.checks} == {Status.PASS}


def test_the_first_of_a_cascade_is_the_root_and_the_others_are_victims(evaluate: Evaluate) -> None:
    history = in_step()
    dead(history, 4, after_s=5.0)
    for rank in (0, 1, 2, 3, 5):
        dead(history, rank, after_s=4.5, exit_kind="exception", exit_signal=None, exit_message=VICTIM)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.kind, found.severity) == ("died_first", (4,), Kind.PROCESS, Severity.FAIL)
    assert found.victims == (0, 1, 2, 3, 5)
    assert found.confidence == "high"
    assert found.onset_time is not None


def test_an_end_that_looks_like_a_victims_is_never_the_root_even_if_it_is_the_oldest(evaluate: Evaluate) -> None:
    """The clock of the victim's host is half a minute behind."""
    history = in_step()
    dead(history, 0, after_s=35.0, exit_kind="exception", exit_signal=None, exit_message=VICTIM)
    dead(history, 4, after_s=5.0)
    assert only(evaluate(history, ids=ID)).ranks == (4,)


def test_terminated_from_outside_blames_nobody(evaluate: Evaluate) -> None:
    history = in_step()
    for rank in range(6):
        dead(history, rank, exit_signal=15, exit_message="killed by SIGTERM")
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks) == ("died_without_root", ())


def test_a_death_of_which_nothing_is_told_makes_the_root_unknown(evaluate: Evaluate) -> None:
    history = in_step()
    dead(history, 4)
    dead(history, 2, exit_kind=None, exit_signal=None, exit_message=None, exit_ns=None)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.victims) == ("died_without_root", (), (2, 4))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", Kind.MEMORY),
        ("OSError: [Errno 28] No space left on device", Kind.STORAGE),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", Kind.DEVICE),
        ("ValueError: labels must be positive", Kind.CODE),
    ],
)
def test_the_words_of_an_exception_say_of_what_kind_it_is(evaluate: Evaluate, message: str, kind: Kind) -> None:
    history = in_step()
    dead(history, 3, exit_kind="exception", exit_signal=None, exit_message=message)
    found = only(evaluate(history, ids=ID))
    assert (found.ranks, found.kind) == ((3,), kind)
    assert message in found.message


def test_a_process_that_the_kernel_killed_for_memory_is_told_as_such(evaluate: Evaluate) -> None:
    history = in_step()
    dead(history, 3)
    kernel(history, 1, "Memory cgroup out of memory: Killed process 1003 (python) total-vm:9000kB, anon-rss:8000kB")
    e = evaluate(history, ids=ID)
    assert named(e, "died_first").kind is Kind.MEMORY
    assert named(e, "killed_by_kernel").ranks == (3,)
    assert e.drain_candidates == ()


@pytest.mark.parametrize(
    ("node", "message", "ago_s"),
    [
        (1, "Memory cgroup out of memory: Killed process 11003 (java)", 3),  # another process
        (0, "Memory cgroup out of memory: Killed process 1003 (python)", 3),  # the same number on another host
        (1, "Memory cgroup out of memory: Killed process 1003 (python)", 4000),  # an hour before
    ],
)
def test_other_kills_of_the_kernel_are_not_evidence(evaluate: Evaluate, node: int, message: str, ago_s: float) -> None:
    history = in_step()
    dead(history, 3)
    kernel(history, node, message, ago_s)
    e = evaluate(history, ids=ID)
    assert only(e).kind is Kind.PROCESS


def test_another_size_on_one_rank_is_named_and_not_the_rank_that_threw_first(evaluate: Evaluate) -> None:
    """gloo aborts all of them within milliseconds; 1,025 elements against 262,144."""
    history = in_step()
    for rank in range(6):
        operation(history, rank, 50, tensor_shape="[1025]" if rank == 2 else "[262144]")
        words = "RuntimeError: op.preamble.length <= op.nbytes. 1048576 vs 4100"
        dead(history, rank, after_s=5.0 - (rank == 5), exit_kind="exception", exit_signal=None, exit_message=words)
    dead(history, 0, after_s=5.5, exit_kind="exception", exit_signal=None, exit_message="RuntimeError: op.preamble.length")
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.kind) == ("died_of_mismatch", (2,), Kind.CODE)
    assert "[1025]" in found.message
    assert found.confidence == "high"


def test_float32_against_float64_is_a_mismatch(evaluate: Evaluate) -> None:
    history = in_step()
    for rank in range(6):
        operation(history, rank, 50, tensor_dtype="float64" if rank == 1 else "float32")
    dead(history, 0, exit_kind="exception", exit_signal=None, exit_message="RuntimeError: length")
    assert only(evaluate(history, ids=ID)).ranks == (1,)


def test_two_ranks_that_disagree_are_both_named_and_none_is_blamed(evaluate: Evaluate) -> None:
    history = running(2, nodes=1, steps=60)
    history.rows["process.kmsg"] = {}
    for rank in range(2):
        operation(history, rank, 50, op="all_reduce" if rank else "broadcast")
    dead(history, 0, exit_kind="exception", exit_signal=None, exit_message="RuntimeError: x")
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.victims, found.confidence) == ("died_of_mismatch", (), (0, 1), "low")


def test_uneven_but_legal_sizes_are_no_mismatch(evaluate: Evaluate) -> None:
    history = in_step()
    for rank in range(6):
        operation(history, rank, 50, op="all_to_all_single", tensor_shape=f"[{rank + 1}]")
        operation(history, rank, 51, op="all_gather_object", tensor_shape=f"[{rank + 1}]")
    dead(history, 4)
    e = evaluate(history, ids=ID)
    assert only(e).id == "died_first"
    assert check(e, "agreement").observed == 0


def test_the_same_group_name_with_other_members_is_another_group(evaluate: Evaluate) -> None:
    history = in_step()
    for rank in range(6):
        members = [0, 1, 2] if rank < 3 else [3, 4, 5]
        shape = "[8]" if rank < 3 else "[16]"
        operation(history, rank, 50, pg_name="dp", participate_ranks=str(members), tensor_shape=shape)
    dead(history, 4, exit_kind="exception", exit_signal=None, exit_message="ValueError: x")
    assert only(evaluate(history, ids=ID)).id == "died_first"


def test_a_signal_is_not_explained_by_a_mismatch(evaluate: Evaluate) -> None:
    history = in_step()
    for rank in range(6):
        operation(history, rank, 50, op="barrier" if rank == 1 else "all_reduce")
    dead(history, 4)  # SIGKILL
    assert only(evaluate(history, ids=ID)).ranks == (4,)


def test_a_rank_that_ended_cleanly_while_others_wait_left_early(evaluate: Evaluate) -> None:
    history = in_step()
    waiting(history, [0, 1, 2, 3, 4], 100)
    finished(history, [5])
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.severity) == ("left_early", (5,), Severity.FAIL)


def test_without_kernel_log_its_check_is_unknown_and_the_verdict_stands(evaluate: Evaluate) -> None:
    history = in_step()
    del history.rows["process.kmsg"]
    e = evaluate(history, ids=ID)
    assert e.status is Status.PASS
    assert (check(e, "kernel").status, check(e, "kernel").gate) == (Status.UNKNOWN, "not_recorded")


def test_nobody_answers(evaluate: Evaluate) -> None:
    history = in_step()
    history.down = {0, 1, 2}
    e = evaluate(history, ids=ID)
    assert e.status is Status.UNKNOWN
    assert check(e, "deaths").gate == "no_rows"


def test_a_node_that_is_not_heard_of_is_not_called_dead(evaluate: Evaluate) -> None:
    history = in_step()
    history.down = {2}
    history.roster = {4: RankStatus.STALE, 5: RankStatus.STALE}
    e: Evaluation = evaluate(history, ids=ID)
    assert (e.status, loud(e)) == (Status.UNKNOWN, [])


def test_the_texts_exist_in_chinese(evaluate: Evaluate) -> None:
    history = in_step()
    dead(history, 4)
    assert "最先终止" in only(evaluate(history, ids=ID, lang="zh")).message


@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, down: tuple[int, ...]
) -> None:
    history = in_step()
    dead(history, 4)
    history.rows["process.exit"] = {
        r: [{"ts": NOW_NS - i, "rank": r, "kind": "exception", "message": f"m{i}"} for i in range(6)] for r in (1, 4)
    }
    for i in range(3):
        kernel(history, i, f"Out of memory: Killed process 100{i} (python)", 3 + i)
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
