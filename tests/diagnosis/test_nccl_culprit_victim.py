"""Who waits for whom in NCCL: a late rank shows in its peers, a slow GPU in itself, a slow link in one edge."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.flight import snapshots
from diagnosis.histories import NOW_NS, Cluster, History
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, named, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.model import Kind, Status

ID = ("nccl_culprit_victim",)
TABLE = "nccl.proxy_ops"


def ring(
    world: int = 8,
    *,
    late: Collection[int] = (),
    slow_gpu: Collection[int] = (),
    slow_link: int | None = None,
    wait_ms: float = 20.0,
    peer_wait: bool = True,
    operations: int = 40,
    absent: Collection[int] = (),
) -> History:
    """A ring of all ranks: each sends to the next. Who is late keeps its receiver and, by its full buffers, its sender
    waiting, and the wait travels on around the ring; a slow GPU does so too, and its own proxy waits for it."""
    history = snapshots(world)
    for table in ("python.torch_nccl_flight_record", "python.torch_nccl_pg_status"):
        del history.rows[table]
    rows = history.rows.setdefault(TABLE, {})
    for rank in (r for r in range(world) if r not in absent):
        after, before = (rank + 1) % world, (rank - 1) % world
        held = bool(late or slow_gpu) and rank not in (*late, *slow_gpu)
        for n in range(operations):
            base = {
                "ts": NOW_NS - (operations - n) * 100_000_000, "rank": rank, "comm_hash": "c", "coll_func": "AllReduce",
                "seq": n, "channel_id": 0, "n_steps": 4, "trans_bytes": 1 << 20,
            }  # fmt: skip
            wait = int(wait_ms * 1e6)
            rows.setdefault(rank, []).append(
                base
                | {"peer": after, "is_send": 1, "send_gpu_wait_ns": wait if rank in slow_gpu else 100_000,
                   "send_peer_wait_ns": (wait if after in late else 50_000) if peer_wait else None,
                   "send_wait_ns": int(8e6) if rank == slow_link else 1_000_000}
            )  # fmt: skip
            rows[rank].append(
                base
                | {"peer": before, "is_send": 0, "recv_wait_ns": wait if held or before == slow_link else 50_000}
                | {"recv_flush_wait_ns": 1000}
            )
    return history


def test_a_healthy_ring_passes(evaluate: Evaluate) -> None:
    e = evaluate(ring(), ids=ID)
    assert (e.status, e.findings) == (Status.PASS, ())


@pytest.mark.parametrize("late", range(8))
def test_a_rank_that_launches_late_is_named_by_its_peers(evaluate: Evaluate, late: int) -> None:
    found = only(evaluate(ring(late=[late]), ids=ID))
    assert (found.id, found.ranks, found.kind, found.confidence) == ("late_launch", (late,), Kind.WORKER, "high")
    assert found.victims == tuple(sorted({(late - 1) % 8, (late + 1) % 8}))
    assert found.hosts == (f"n{late // 2}",)


def test_a_gpu_that_is_late_inside_the_collective_is_named_by_its_own_proxy(evaluate: Evaluate) -> None:
    e = evaluate(ring(slow_gpu=[3]), ids=ID)
    found = only(e)
    assert (found.id, found.ranks, found.kind) == ("slow_gpu", (3,), Kind.DEVICE)
    assert e.drain_candidates == ()


def test_a_slow_link_blames_neither_side(evaluate: Evaluate) -> None:
    found = only(evaluate(ring(slow_link=5), ids=ID))
    assert (found.id, found.ranks, found.victims, found.kind) == ("slow_link", (), (5, 6), Kind.NETWORK)
    assert "from rank 5 to rank 6" in found.message


def test_two_ranks_alike_are_ambiguous_and_none_is_blamed(evaluate: Evaluate) -> None:
    e = evaluate(ring(late=[1, 5]), ids=ID)
    assert loud(e) == []
    assert named(e, "root_ambiguous").victims == (1, 5)


def test_waits_below_the_share_of_the_window_are_silent(evaluate: Evaluate) -> None:
    assert loud(evaluate(ring(late=[2], wait_ms=1.0), ids=ID)) == []


def test_an_older_profiler_is_told_and_still_names_the_late_rank(evaluate: Evaluate) -> None:
    e = evaluate(ring(late=[2], peer_wait=False), ids=ID)
    assert (only(e).ranks, only(e).confidence) == ((2,), "medium")
    assert "send_peer_wait" in named(e, "older_profiler").message


def test_ranks_without_rows_are_unknown_and_never_named(evaluate: Evaluate) -> None:
    e = evaluate(ring(late=[2], absent=[2]), ids=ID)
    assert [f.ranks for f in loud(e)] == []
    assert named(e, "no_proxy").ranks == (2,)
    e = evaluate(ring(late=[2], absent=[0, 1, 3, 4, 5]), ids=ID)
    assert ([f.ranks for f in loud(e)], check(e, "waits").gate, e.status) == ([], "members", Status.UNKNOWN)


def test_no_rows_at_all_is_unknown(evaluate: Evaluate) -> None:
    history = ring(operations=0)
    e = evaluate(history, ids=ID)
    assert (e.status, check(e, "waits").gate) == (Status.UNKNOWN, "no_proxy_rows")
    del history.rows[TABLE]
    e = evaluate(history, ids=ID)
    assert (e.status, check(e, "waits").gate) == (Status.UNKNOWN, "not_recorded")


def test_one_operation_is_no_window(evaluate: Evaluate) -> None:
    assert loud(evaluate(ring(late=[2], operations=1), ids=ID)) == []


def test_only_the_window_counts(evaluate: Evaluate) -> None:
    history = ring()
    for row in ring(late=[4]).rows[TABLE].items():
        history.rows[TABLE][row[0]] = [r | {"ts": r["ts"] - 600_000_000_000} for r in row[1]] + history.rows[TABLE][row[0]]
    assert loud(evaluate(history, ids=ID)) == []


def test_the_texts_exist_in_chinese(evaluate: Evaluate) -> None:
    assert "启动得晚" in only(evaluate(ring(late=[0]), ids=ID, lang="zh")).message


@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, down: tuple[int, ...]
) -> None:
    history = ring(late=[3], slow_link=6)
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID, window_s=2.5), catalogue, cluster, history)
