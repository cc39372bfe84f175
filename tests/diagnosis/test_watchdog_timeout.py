"""Alignment by the flight recorder: mismatch first, then who is behind; healthy ranks are never named."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.flight import call, counted, dumps, needs_dumps, outside, snapshots, stuck
from diagnosis.histories import Cluster
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, named, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.diagnosis.evaluation import Evaluation
from muster.diagnosis.workspace import ROSTER, Desk, param_columns
from muster.model import Kind, Severity, Status
from muster.tables import FLIGHT_RECORD, PG_STATUS

ID = ("watchdog_timeout",)
TRUTH = {"gpu_error_1st": ("device", (12, 14)), "lock_gil_2nd": ("process", (10, 15))}


@needs_dumps
@pytest.mark.parametrize("name", TRUTH)
def test_the_public_dumps_name_exactly_their_ranks(evaluate: Evaluate, name: str) -> None:
    kind, ranks = TRUTH[name]
    e = evaluate(dumps(name), ids=ID)
    found = only(e)
    assert (found.id, found.kind, found.ranks, found.confidence) == (kind, Kind(kind), ranks, "high")
    assert found.victims == tuple(r for r in range(16) if r not in ranks)
    assert e.drain_candidates == ()


@needs_dumps
@pytest.mark.parametrize("name", TRUTH)
def test_without_the_dumps_of_the_guilty_nobody_is_named(evaluate: Evaluate, name: str) -> None:
    _, ranks = TRUTH[name]
    e = evaluate(dumps(name, ranks), ids=ID)
    assert (only(e).id, only(e).ranks, e.status) == ("unseen", (), Status.FAIL)
    assert named(e, "no_dump").ranks == ranks


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


def concluded(desk: Desk, catalogue: DiagnosisCatalogue, full: Evaluation, gone: set[int]) -> dict[str, list[int]]:
    """Findings of a set of dumps less some: every row of a step is of one rank, so what remains is what there would be."""
    import pyarrow as pa
    import pyarrow.compute as pc

    loaded = catalogue.get("watchdog_timeout")
    values = full.parameters["watchdog_timeout"]
    with desk.workspace(60) as workspace:
        for step in full.steps:
            assert step.table is not None
            keep = pc.invert(pc.is_in(step.table["rank"], pa.array(sorted(gone), pa.int64())))
            workspace.add(step.name, loaded.columns[step.name], step.table.filter(keep))
        roster = {c.name: [None] * 16 for c in ROSTER} | {"rank": list(range(16))}
        workspace.add("roster", ROSTER, pa.table(roster))
        params = param_columns(loaded.diagnosis.parameters)
        workspace.add("params", params, pa.table({c.name: [values[c.name]] for c in params}))
        for derived in loaded.diagnosis.derived:
            workspace.derive(derived.name, derived.sql)
        asked = {f.name: workspace.ask(f.sql, 64) for f in loaded.diagnosis.findings}
    return {n: sorted({r for row in rows for r in row.get("ranks") or ()}) for n, rows in asked.items() if rows}


def subsets(count: int, seed: int) -> list[set[int]]:
    """Every single rank, then samples of 2 to 8 of the 16 by turns."""
    rng = random.Random(seed)
    drawn = [set(rng.sample(range(16), 2 + i % 7)) for i in range(count)]
    return [{r} for r in range(16)] + drawn


@needs_dumps
@pytest.mark.parametrize("name", TRUTH)
def test_whatever_dumps_are_missing_no_healthy_rank_is_named(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, desk: Desk, name: str
) -> None:
    kind, guilty = TRUTH[name]
    full = evaluate(dumps(name), ids=ID)
    for gone in subsets(21, 4):
        found = concluded(desk, catalogue, full, gone)
        assert found.pop("no_dump") == sorted(gone)
        assert set(found) & {"device", "process", "unseen", "ambiguous"}, gone
        assert {r for ranks in found.values() for r in ranks} <= set(guilty) - gone, (gone, found)
        assert not found.get("process" if kind == "device" else "device"), gone


@needs_dumps
@pytest.mark.parametrize("gone", [{3}, {12}, {0, 15}, {1, 4, 9, 10}])
def test_the_service_concludes_the_same_without_some_dumps(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, desk: Desk, gone: set[int]
) -> None:
    full = evaluate(dumps("lock_gil_2nd"), ids=ID)
    e = evaluate(dumps("lock_gil_2nd", gone), ids=ID)
    want = concluded(desk, catalogue, full, gone)
    assert {f.id: list(f.ranks) for f in e.findings} == want


def test_a_size_that_one_of_128_ranks_got_wrong(evaluate: Evaluate) -> None:
    history = snapshots(128)
    stuck(history, [r for r in range(128) if r != 77], sizes=[[262_144]])
    stuck(history, [77], sizes=[[1_025]])
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.kind, found.severity) == ("mismatch", (77,), Kind.CODE, Severity.FAIL)
    assert all(part in found.message for part in ("another size", "[[1025]]", "127 of 128"))
    assert "step77 (train.py:7)" in found.message
    assert len(found.victims) == 127


def test_another_type_and_another_operation(evaluate: Evaluate) -> None:
    for wrong, what in (({"dtype": "Double"}, "type"), ({"op": "all_gather"}, "operation")):
        history = snapshots()
        stuck(history, [r for r in range(8) if r != 5])
        stuck(history, [5], **wrong)
        found = only(evaluate(history, ids=ID))
        assert (found.id, found.ranks) == ("mismatch", (5,))
        assert f"another {what}" in found.message


def test_the_earliest_mismatch_is_the_root(evaluate: Evaluate) -> None:
    """A skipped collective shifts all that come after it."""
    history = snapshots()
    ops = ["all_reduce", "broadcast", "all_gather", "reduce_scatter"]
    for rank in range(8):
        for i, op in enumerate(ops[1:] if rank == 2 else ops):
            call(history, rank, 50 + i, op)
        counted(history, rank, 53, 49)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks) == ("mismatch", (2,))
    assert "at sequence 50" in found.message


@pytest.mark.parametrize(("world", "wrong"), [(2, [1]), (8, [0, 1, 2, 3])])
def test_at_a_tie_all_are_told_and_none_is_blamed(evaluate: Evaluate, world: int, wrong: list[int]) -> None:
    history = snapshots(world, 2)
    stuck(history, [r for r in range(world) if r not in wrong])
    stuck(history, wrong, sizes=[[7]])
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.victims) == ("mismatch_tie", (), tuple(range(world)))


def test_a_majority_of_the_dumps_that_is_none_of_the_group_settles_nothing(evaluate: Evaluate) -> None:
    history = snapshots()
    stuck(history, [0, 1])
    stuck(history, [2], sizes=[[7]])
    e = evaluate(history, ids=ID)
    assert (only(e).id, only(e).ranks) == ("mismatch_tie", ())
    assert named(e, "no_dump").ranks == (3, 4, 5, 6, 7)


def test_an_all_to_all_whose_splits_disagree_names_the_pair(evaluate: Evaluate) -> None:
    history = snapshots(4)
    for rank in range(4):
        sent = [[[10 * rank + peer]] for peer in range(4)]
        awaited = [[[10 * peer + rank]] for peer in range(4)]
        sizes = [s[0] for s in sent]
        out = [a[0] for a in awaited]
        if rank == 3:
            out[1] = [99]
        stuck(history, [rank], op="all_to_all", sizes=sizes, out=out)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.victims) == ("splits", (), (1, 3))
    assert "1 sends [13], 3 awaits [99]" in found.message


def test_uneven_but_legal_calls_are_no_mismatch(evaluate: Evaluate) -> None:
    """Sides of rooted operations, uneven gathers, splits, shapes of one size, coalesced calls that share a sequence."""
    history = snapshots(4)
    for rank in range(4):
        call(history, rank, 90, "all_to_all", sizes=[[4_000 + rank]], out=[[4_003 - rank]], state="completed")
        call(history, rank, 91, "_all_gather_base", sizes=[[rank + 1]], out=[[10]], state="completed")
        call(history, rank, 92, "gather", sizes=[[8]], out=[[8]] * 4 if rank == 0 else [], state="completed")
        call(history, rank, 93, "scatter", sizes=[[8]] * 4 if rank == 0 else [], out=[[8]], state="completed")
        call(history, rank, 94, sizes=[[6, 4]] if rank else [[24]], state="completed")
        for op in ("all_reduce", "broadcast") if rank else ("broadcast", "all_reduce"):
            call(history, rank, 95, op, state="completed", record_id=950 + (op == "broadcast"))
        counted(history, rank, 95, 95)
    e = evaluate(history, ids=ID)
    assert (loud(e), e.status) == ([], Status.PASS)


def test_a_rank_that_never_came_is_process_and_others_are_victims(evaluate: Evaluate) -> None:
    history = snapshots()
    stuck(history, [0, 1, 2, 4, 5, 6, 7])
    outside(history, [3])
    e = evaluate(history, ids=ID)
    found = only(e)
    assert (found.id, found.ranks, found.victims) == ("process", (3,), (0, 1, 2, 4, 5, 6, 7))
    assert (found.hosts, found.next, found.confidence) == (("n1",), ("training_hang",), "high")


def test_a_rank_that_left_a_rooted_operation_early_is_no_device_fault_of_the_one_that_never_came(
    evaluate: Evaluate,
) -> None:
    """The source of a broadcast has completed it; the rank that has not called it stands in its process."""
    history = snapshots(4)
    call(history, 0, 100, "broadcast", state="completed")
    call(history, 0, 101)
    counted(history, 0, 101, 100)
    stuck(history, [1, 2], 100, op="broadcast")
    outside(history, [3])
    found = [f for f in loud(evaluate(history, ids=ID)) if f.id == "process"]
    assert [f.ranks for f in found] == [(3,)]


def test_a_device_that_did_not_finish(evaluate: Evaluate) -> None:
    history = snapshots(4)
    for rank in range(4):
        for seq in range(98 if rank == 1 else 100, 102):
            call(history, rank, seq)
        counted(history, rank, 101, 97 if rank == 1 else 99)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.kind, found.next) == ("device", (1,), Kind.DEVICE, ("node_hardware",))


def test_nobody_behind_and_nobody_moving_is_symmetric(evaluate: Evaluate) -> None:
    history = snapshots()
    stuck(history, range(8))
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks, found.kind, found.victims) == ("symmetric", (), Kind.NETWORK, tuple(range(8)))


def test_a_rank_without_a_dump_is_no_dump_and_never_behind(evaluate: Evaluate) -> None:
    history = snapshots()
    stuck(history, [r for r in range(8) if r != 6])
    e = evaluate(history, ids=ID)
    assert (only(e).id, only(e).ranks, named(e, "no_dump").ranks) == ("unseen", (), (6,))
    assert "prime suspects" in named(e, "no_dump").message


def test_who_waits_for_a_rank_without_a_dump_is_not_named(evaluate: Evaluate) -> None:
    """1 is behind 0 in one group because it waits for 2 in another, and 2 left no dump."""
    history = snapshots(3, 3)
    stuck(history, [0], members=[0, 1], pg="a")
    outside(history, [1], members=[0, 1], pg="a")
    stuck(history, [1], members=[1, 2], pg="b")
    e = evaluate(history, ids=ID)
    assert (only(e).id, only(e).ranks, named(e, "no_dump").ranks) == ("ambiguous", (), (2,))


def test_a_rank_that_is_behind_here_and_ahead_there_is_not_the_root(evaluate: Evaluate) -> None:
    history = snapshots(3, 3)
    stuck(history, [0], members=[0, 1], pg="a")
    outside(history, [1], members=[0, 1], pg="a")
    stuck(history, [1], members=[1, 2], pg="b")
    outside(history, [2], members=[1, 2], pg="b")
    assert only(evaluate(history, ids=ID)).ranks == (2,)


def test_a_circle_is_ambiguous(evaluate: Evaluate) -> None:
    history = snapshots(2, 2)
    for rank, mine, other in ((0, "a", "b"), (1, "b", "a")):
        stuck(history, [rank], members=[0, 1], pg=mine)
        outside(history, [rank], members=[0, 1], pg=other)
    found = only(evaluate(history, ids=ID))
    assert (found.id, found.ranks) == ("ambiguous", ())
    assert "0, 1 are behind" in found.message


def test_groups_with_unlike_counters_do_not_lag_behind_each_other(evaluate: Evaluate) -> None:
    history = snapshots(4)
    stuck(history, [0, 1], 900, members=[0, 1], pg="a")
    stuck(history, [2, 3], 12, members=[2, 3], pg="b")
    assert only(evaluate(history, ids=ID)).id == "symmetric"


def test_the_same_name_with_other_members_is_another_group(evaluate: Evaluate) -> None:
    history = snapshots(4)
    stuck(history, [0, 1], 900, members=[0, 1], pg="a")
    stuck(history, [2, 3], 12, members=[2, 3], pg="a", op="broadcast", sizes=[[9]])
    assert only(evaluate(history, ids=ID)).id == "symmetric"


def test_counters_that_include_point_to_point_are_not_compared(evaluate: Evaluate) -> None:
    history = snapshots(2, 2)
    for rank, total in ((0, 500), (1, 300)):
        call(history, rank, 7, "send 0->1", is_p2p=1, op_id=total)
        counted(history, rank, total, total - 1)
    assert only(evaluate(history, ids=ID)).id == "symmetric"


def test_one_rank_ahead_in_one_snapshot_is_silent(evaluate: Evaluate) -> None:
    history = snapshots()
    stuck(history, [r for r in range(8) if r != 3], age_s=0.02)
    outside(history, [3])
    e = evaluate(history, ids=ID)
    assert (loud(e), check(e, "aligned").gate, e.status) == ([], "one_snapshot", Status.UNKNOWN)


@pytest.mark.parametrize("moves", [True, False])
def test_two_snapshots_tell_whether_a_rank_moves(evaluate: Evaluate, moves: bool) -> None:
    history = snapshots()
    stuck(history, [r for r in range(8) if r != 3], age_s=12.0)
    outside(history, [3])
    for rank in range(8):
        at = 50 if moves else 99
        counted(history, rank, 100 if rank != 3 and not moves else at, at, ago_s=15)
    e = evaluate(history, ids=ID)
    assert [f.ranks for f in loud(e)] == ([] if moves else [(3,)])


def test_a_snapshot_of_a_job_at_rest_passes(evaluate: Evaluate) -> None:
    history = snapshots()
    outside(history, range(8))
    e = evaluate(history, ids=ID)
    assert (loud(e), e.status) == ([], Status.PASS)


def test_only_the_newest_snapshot_counts(evaluate: Evaluate) -> None:
    history = snapshots()
    for rank in range(8):
        call(history, rank, 100, "broadcast" if rank == 1 else "all_reduce", ago_s=30)
        counted(history, rank, 100, 99, ago_s=30)
        counted(history, rank, 200, 200)
        call(history, rank, 200, state="completed")
    assert loud(evaluate(history, ids=ID)) == []


def test_nothing_recorded_and_nothing_in_it(evaluate: Evaluate) -> None:
    history = snapshots()
    assert check(evaluate(history, ids=ID), "aligned").gate == "no_snapshots"
    for table in (FLIGHT_RECORD.full_name, PG_STATUS.full_name):
        del history.rows[table]
    e = evaluate(history, ids=ID)
    assert (check(e, "aligned").gate, e.status) == ("not_recorded", Status.UNKNOWN)


def test_the_texts_exist_in_chinese(evaluate: Evaluate) -> None:
    history = snapshots()
    stuck(history, range(1, 8))
    outside(history, [0])
    assert "没有调用" in only(evaluate(history, ids=ID, lang="zh")).message


@needs_dumps
@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_of_the_public_dumps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, down: tuple[int, ...]
) -> None:
    history = dumps("gpu_error_1st")
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)


def test_all_steps_of_two_snapshots_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster
) -> None:
    history = snapshots()
    for rank in range(8):
        for ago_s in (0, 12, 40):
            for seq in range(90):
                more: dict[str, Any] = {
                    "pg": "ab"[seq % 2],
                    "ago_s": ago_s,
                    "state": "completed" if seq < 80 else "started",
                }
                call(history, rank, seq, ("all_reduce", "broadcast")[seq % 3 == 0], **more)
            counted(history, rank, 89 - ago_s, 70 - ago_s, pg="a", ago_s=ago_s)
    e = evaluate(history, ids=ID, entries=7)
    assert_steps_equal_one_duckdb(e, catalogue, cluster, history)
    assert next(s for s in e.steps if s.name == "calls").table.num_rows == 8 * 2 * 7  # type: ignore[union-attr]
