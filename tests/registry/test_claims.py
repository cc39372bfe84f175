"""What a view says of uncertain rosters, when it is made anew, and that starts in the future do not win."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from muster.federation.coverage import coverage_of
from muster.model import RankStatus
from muster.protocol import NodeRank, Registration
from muster.registry import roster
from muster.registry.registry import Registry
from muster.registry.store import Store

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def said(
    ranks: list[int], *, generation: str = "g1", started: float | None = 0.0, port: int = 8701, world_size: int = 2
) -> Registration:
    start = None if started is None else at(started)
    return Registration(
        addr=f"http://127.0.0.1:{port}",
        host="h",
        world_size=world_size,
        ranks=[NodeRank(rank=r, generation=generation, pid=100 + r, started_at=start) for r in ranks],
    )


@pytest.fixture
def registry() -> Registry:
    return Registry(Store(None), expires_s=30.0, now=T0)


def test_two_claims_to_a_rank_are_told_in_the_coverage(registry: Registry) -> None:
    registry.register("j", "a", said([0, 1]), at(0))
    registry.register("j", "b", said([1], port=8702), at(1))
    view = registry.view("j", at(2))
    assert view.notes == ("a and b both claim rank 1: a is asked",)
    assert coverage_of(view, []).notes == view.notes
    registry.register("j", "b", said([], port=8702), at(3))
    assert registry.view("j", at(4)).notes == ()


def test_a_silent_node_claims_nothing(registry: Registry) -> None:
    registry.register("j", "old", said([0, 1]), at(0))
    registry.register("j", "new", said([0, 1], port=8702), at(40))
    view = registry.view("j", at(41))
    assert ([s.id for s in view.shards], view.notes) == (["new"], ())


def test_many_claims_are_a_few_notes(registry: Registry) -> None:
    for i in range(40):
        registry.register("j", f"n{i:02}", said([0, 1], port=8800 + i), at(0))
    notes = registry.view("j", at(1)).notes
    assert len(notes) == 9
    assert notes[-1] == "31 more pairs of nodes claim the same ranks"


def test_after_a_restart_the_coverage_says_that_ranks_are_as_last_known(tmp_path: Path) -> None:
    before = Registry(Store(tmp_path / "s.db"), now=T0)
    before.register("j", "a", said([0]), at(0))
    before.register("j", "b", said([1], port=8702), at(0))
    again = Registry(Store(tmp_path / "s.db"), expires_s=30.0, now=at(100))
    (note,) = again.view("j", at(101)).notes
    assert "restarted: 2 ranks are as last known" in note
    again.register("j", "a", said([0]), at(102))
    (note,) = again.view("j", at(103)).notes
    assert "1 ranks are as last known, their agents (b)" in note
    late = again.view("j", at(131))
    assert late.notes == ()
    assert [r.status for r in late.ranks] == [RankStatus.RUNNING, RankStatus.STALE]


@pytest.mark.parametrize("started", [10.0**7, None])
def test_a_start_in_the_future_or_unknown_does_not_grow_with_every_heartbeat(
    registry: Registry, started: float | None
) -> None:
    registry.register("j", "a", said([0], generation="g1", started=started), at(0))
    registry.register("j", "b", said([0, 1], generation="g2", started=50, port=8702), at(60))
    for beat in range(70, 100, 10):
        registry.register("j", "a", said([0], generation="g1", started=started), at(beat))
        registry.register("j", "b", said([0, 1], generation="g2", started=50, port=8702), at(beat))
        assert registry.view("j", at(beat)).generation == "g2"


def test_a_start_in_the_future_takes_no_rank_from_another_node(registry: Registry) -> None:
    registry.register("j", "a", said([0], started=-10), at(0))
    registry.register("j", "a", said([0], started=10.0**7, world_size=1), at(1))
    registry.register("j", "b", said([0], started=10.0**8, port=8702, world_size=1), at(2))
    assert [s.id for s in registry.view("j", at(3)).shards] == ["a"]


def test_a_view_is_made_once_until_something_changes(registry: Registry) -> None:
    registry.register("j", "a", said([0]), at(0))
    with patch.object(roster, "view", wraps=roster.view) as made:
        first, second = registry.view("j", at(1)), registry.view("j", at(2))
        assert (made.call_count, second.taken_at) == (1, at(2))
        assert first.ranks is second.ranks
        registry.jobs(at(3))
        assert made.call_count == 1
        registry.register("j", "b", said([1], port=8702), at(4))
        assert [s.id for s in registry.view("j", at(5)).shards] == ["a", "b"]
        registry.deregister("j", "b")
        assert [s.id for s in registry.view("j", at(6)).shards] == ["a"]
        assert made.call_count == 3


def test_a_kept_view_ends_when_a_node_falls_silent(registry: Registry) -> None:
    registry.register("j", "a", said([0, 1]), at(0))
    assert {r.status for r in registry.view("j", at(30)).ranks} == {RankStatus.RUNNING}
    assert {r.status for r in registry.view("j", at(30.001)).ranks} == {RankStatus.STALE}
    assert {r.status for r in registry.view("j", at(29)).ranks} == {RankStatus.RUNNING}


def test_a_forgotten_job_leaves_the_state_file_with_the_next_registration(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    registry = Registry(store, forget_s=100, now=T0)
    registry.register("gone", "a", said([0]), at(0))
    registry.register("back", "a", said([0]), at(0))
    assert registry.jobs(at(101)) == []
    registry.register("back", "a", said([0]), at(102))
    assert [n.job for n in store.nodes()] == ["back"]
