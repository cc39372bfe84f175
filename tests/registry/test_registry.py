"""The registry: generations, expiry, claims, caps, and what survives a restart."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from muster.errors import Forbidden, JobNotFound, NodeNotFound, ParameterError, TooLarge
from muster.model import RankStatus
from muster.protocol import NodeRank, Registration
from muster.registry.addresses import AllowList
from muster.registry.registry import Limits, Registry
from muster.registry.store import Store

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def said(
    ranks: list[int], *, generation: str = "g1", world_size: int = 4, started: float = 0.0, pid: int = 100, **more: object
) -> Registration:
    nodes = [
        NodeRank(
            rank=r, generation=generation, pid=pid + r, started_at=at(started), status=str(more.get("status", "running"))
        )  # type: ignore[arg-type]
        for r in ranks
    ]
    return Registration(
        addr=str(more.get("addr", "http://127.0.0.1:8701")),
        kind=str(more.get("kind", "agent")),  # type: ignore[arg-type]
        host=str(more.get("host", "h")),
        world_size=world_size,
        ranks=nodes,
    )


@pytest.fixture
def registry() -> Registry:
    return Registry(Store(None), expires_s=30.0)


def statuses(registry: Registry, now: datetime) -> list[RankStatus]:
    return [r.status for r in registry.view("j", now).ranks]


def test_an_unknown_job_is_not_found(registry: Registry) -> None:
    with pytest.raises(JobNotFound) as error:
        registry.view("nope", T0)
    assert error.value.hint


def test_every_expected_rank_is_in_the_roster_seen_or_missing(registry: Registry) -> None:
    registry.register("j", "n0", said([0, 1]), at(1))
    view = registry.view("j", at(2))
    assert (view.world_size, view.generation) == (4, "g1")
    assert [r.status for r in view.ranks] == [RankStatus.RUNNING] * 2 + [RankStatus.MISSING] * 2
    assert [s.ranks for s in view.shards] == [(0, 1)]


def test_a_node_that_falls_silent_is_stale_and_stays_in_the_roster(registry: Registry) -> None:
    registry.register("j", "n0", said([0, 1]), at(0))
    registry.register("j", "n1", said([2, 3], addr="http://127.0.0.1:8702"), at(0))
    registry.register("j", "n0", said([0, 1]), at(40))
    assert statuses(registry, at(41)) == [RankStatus.RUNNING] * 2 + [RankStatus.STALE] * 2
    assert [s.alive for s in registry.view("j", at(41)).shards] == [True, False]


def test_a_finished_rank_stays_finished_when_its_agent_leaves(registry: Registry) -> None:
    registry.register("j", "n0", said([0, 1, 2, 3], status="finished"), at(0))
    assert statuses(registry, at(1000)) == [RankStatus.FINISHED] * 4
    registry.deregister("j", "n0")
    assert statuses(registry, at(1001)) == [RankStatus.FINISHED] * 4


def test_the_newest_generation_is_the_one_whose_ranks_started_last(registry: Registry) -> None:
    registry.register("j", "n0", said([0, 1], generation="g2", started=100), at(101))
    registry.register("j", "n1", said([2, 3], generation="g1", started=5, addr="http://127.0.0.1:8702"), at(102))
    view = registry.view("j", at(103))
    assert view.generation == "g2"
    assert view.previous_generations == ("g1",)
    assert [r.status for r in view.ranks] == [RankStatus.RUNNING] * 2 + [RankStatus.MISSING] * 2


def test_a_restart_with_fewer_ranks_has_the_new_world_size(registry: Registry) -> None:
    registry.register("j", "n0", said([0, 1, 2, 3], world_size=4), at(0))
    registry.register("j", "n0", said([0, 1], generation="g2", world_size=2, started=50, pid=900), at(51))
    assert registry.view("j", at(52)).world_size == 2


def test_a_process_whose_generation_becomes_final_is_in_that_one_only(registry: Registry) -> None:
    registry.register("j", "n0", said([0, 1], generation="provisional", world_size=2), at(0))
    registry.register("j", "n0", said([0, 1], generation="final", world_size=2), at(1))
    view = registry.view("j", at(2))
    assert view.generation == "final"
    assert view.previous_generations == ()
    assert [r.status for r in view.ranks] == [RankStatus.RUNNING] * 2


def test_a_rank_claimed_twice_belongs_to_the_better_kind_of_shard(registry: Registry) -> None:
    registry.register("j", "foreign", said([0], kind="probing", world_size=1, started=9), at(0))
    registry.register("j", "ours", said([0], world_size=1, addr="http://127.0.0.1:8702"), at(1))
    registry.register("j", "foreign", said([0], kind="probing", world_size=1, started=9), at(2))
    assert [(s.id, s.ranks) for s in registry.view("j", at(3)).shards] == [("ours", (0,))]


def test_a_rank_claimed_twice_by_agents_belongs_to_the_process_that_started_last(registry: Registry) -> None:
    registry.register("j", "old", said([0], world_size=1, started=0), at(0))
    registry.register("j", "new", said([0], world_size=1, started=60, addr="http://127.0.0.1:8702"), at(61))
    registry.register("j", "old", said([0], world_size=1, started=0), at(62))
    assert [(s.id, s.ranks) for s in registry.view("j", at(63)).shards] == [("new", (0,))]


def test_deregistering_what_is_not_there_is_said(registry: Registry) -> None:
    registry.register("j", "n0", said([0]), at(0))
    with pytest.raises(NodeNotFound):
        registry.deregister("j", "n9")


def test_jobs_are_forgotten_after_long_silence() -> None:
    registry = Registry(Store(None), forget_s=100)
    registry.register("j", "n0", said([0]), at(0))
    assert [s.job for s in registry.jobs(at(50))] == ["j"]
    assert registry.jobs(at(101)) == []


def test_caps_hold() -> None:
    registry = Registry(Store(None), limits=Limits(jobs=1, nodes_per_job=1, ranks_per_job=8))
    registry.register("j", "n0", said([0]), at(0))
    for job, node, what in (("k", "n0", said([0])), ("j", "n1", said([1])), ("j", "n0", said([0], world_size=9))):
        with pytest.raises(TooLarge):
            registry.register(job, node, what, at(1))


@pytest.mark.parametrize(
    "addr",
    [
        "ftp://127.0.0.1",
        "http://user@127.0.0.1:1",
        "http://127.0.0.1:1/?q",
        "127.0.0.1:80",
        "http://",
        "http://127.0.0.1:0",
    ],
)
def test_an_address_that_is_no_plain_url_is_refused(registry: Registry, addr: str) -> None:
    with pytest.raises(ParameterError):
        registry.register("j", "n0", said([0], addr=addr), at(0))


@pytest.mark.parametrize("addr", ["http://10.0.0.1:1", "http://169.254.169.254/latest", "http://example.org:80"])
def test_addresses_beyond_the_list_are_refused(registry: Registry, addr: str) -> None:
    with pytest.raises(Forbidden):
        registry.register("j", "n0", said([0], addr=addr), at(0))
    with pytest.raises(JobNotFound):
        registry.view("j", at(1))


def test_the_list_takes_networks_names_and_domains() -> None:
    allowed = AllowList(["10.0.0.0/8", "node1", ".cluster.local"])
    for addr in ("http://10.1.2.3:1", "http://node1:1", "http://a.b.cluster.local:1", "http://NODE1:1"):
        assert allowed.check(addr + "/") == addr
    for addr in ("http://11.0.0.1:1", "http://node2:1", "http://evilcluster.local:1", "http://127.0.0.1:1"):
        with pytest.raises(Forbidden):
            allowed.check(addr)


def test_the_roster_survives_a_restart(tmp_path: Path) -> None:
    first = Registry(Store(tmp_path / "s.db"))
    first.register("j", "n0", said([0, 1]), at(0))
    first.register("j", "n1", said([2], addr="http://127.0.0.1:8702"), at(1))
    first.deregister("j", "n1")
    second = Registry(Store(tmp_path / "s.db"))
    assert [(r.rank, r.node) for r in second.view("j", at(5)).ranks if r.node] == [(0, "n0"), (1, "n0")]


def test_heartbeats_without_news_are_not_written(tmp_path: Path) -> None:
    registry = Registry(Store(tmp_path / "s.db"))
    registry.register("j", "n0", said([0, 1]), at(0))
    reader = sqlite3.connect(tmp_path / "s.db")
    (before,) = reader.execute("SELECT seen_at FROM nodes").fetchone()
    registry.register("j", "n0", said([0, 1]), at(10))
    assert reader.execute("SELECT seen_at FROM nodes").fetchone() == (before,)
    registry.register("j", "n0", said([0, 1, 2]), at(20))
    assert reader.execute("SELECT seen_at FROM nodes").fetchone() != (before,)
    reader.close()


def test_a_state_file_that_is_none_is_said_and_done_without(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_bytes(b"this is no database, but long enough to be read as one" * 100)
    store = Store(tmp_path / "s.db")
    assert store.problem
    registry = Registry(store)
    registry.register("j", "n0", said([0]), at(0))
    assert registry.view("j", at(1)).generation == "g1"


def test_a_state_file_of_another_format_is_left_alone(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "s.db")
    other.execute("PRAGMA user_version=99")
    other.execute("CREATE TABLE precious (x)")
    other.commit()
    other.close()
    store = Store(tmp_path / "s.db")
    assert store.problem is not None
    assert "99" in store.problem
    check = sqlite3.connect(tmp_path / "s.db")
    assert check.execute("SELECT name FROM sqlite_master").fetchall() == [("precious",)]
    check.close()


def test_a_job_that_says_the_same_for_weeks_is_still_known_after_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    registry = Registry(store, forget_s=7 * 86_400.0, now=T0)
    for hour in range(0, 24 * 15, 1):
        registry.register("j", "n0", said([0, 1]), at(hour * 3600.0))
    last = at(24 * 15 * 3600.0)
    again = Registry(store, forget_s=7 * 86_400.0, now=last)
    assert [s.job for s in again.jobs(last)] == ["j"]


def test_a_restarted_gateway_gives_every_node_one_period_to_speak(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    Registry(store, now=T0).register("j", "n0", said([0, 1], world_size=2), at(0))
    again = Registry(store, expires_s=30.0, now=at(1000))
    assert statuses(again, at(1010)) == [RankStatus.RUNNING] * 2
    assert again.view("j", at(1010)).ranks[0].last_seen == at(0)
    assert statuses(again, at(1031)) == [RankStatus.STALE] * 2


def test_a_rank_that_its_node_lists_no_more_is_stale_and_not_asked_there(registry: Registry) -> None:
    registry.register("j", "n0", said([0, 1], world_size=2), at(0))
    registry.register("j", "n0", said([0], world_size=2), at(5))
    view = registry.view("j", at(6))
    assert [r.status for r in view.ranks] == [RankStatus.RUNNING, RankStatus.STALE]
    assert [s.ranks for s in view.shards] == [(0,)]
    registry.register("j", "n0", said([0, 1], world_size=2), at(8))
    assert statuses(registry, at(9)) == [RankStatus.RUNNING] * 2


def test_an_agent_that_comes_back_under_another_name_takes_its_ranks_over(registry: Registry) -> None:
    registry.register("j", "old", said([0, 1], world_size=2), at(0))
    registry.register("j", "new", said([0, 1], world_size=2), at(10))
    assert [s.id for s in registry.view("j", at(11)).shards] == ["old"]
    registry.register("j", "new", said([0, 1], world_size=2), at(40))
    view = registry.view("j", at(41))
    assert [s.id for s in view.shards] == ["new"]
    assert [r.status for r in view.ranks] == [RankStatus.RUNNING] * 2


def test_a_start_in_the_future_does_not_keep_a_generation_newest(registry: Registry) -> None:
    registry.register("j", "n0", said([0], generation="g1", started=10**7), at(0))
    registry.register("j", "n0", said([0], generation="g2", started=50), at(60))
    assert registry.view("j", at(61)).generation == "g2"


@pytest.mark.parametrize("year", [1, 1970, 9999])
def test_a_time_that_cannot_be_is_taken_for_one_that_can(registry: Registry, year: int) -> None:
    odd = said([0], world_size=1)
    rank = odd.ranks[0].model_copy(update={"last_seen": datetime(year, 1, 1, tzinfo=UTC)})
    registry.register("j", "n0", odd.model_copy(update={"ranks": [rank]}), at(0))
    (info,) = registry.view("j", at(1)).ranks
    assert info.last_seen is not None
    assert at(0) - timedelta(days=3650) <= info.last_seen <= at(0)


def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store(path)
    registry = Registry(store, now=T0)
    for node in range(200):
        registry.register("j", f"n{node}", said([node], world_size=200), at(0))
    store.close()
    whole = path.read_bytes()
    for start in (0, 4096, len(whole) // 2):
        path.write_bytes(whole[:start] + b"\xff" * 4096 + whole[start + 4096 :])
        damaged = Store(path)
        assert damaged.problem is not None
        assert "damaged" in damaged.problem
        again = Registry(damaged, now=T0)
        again.register("k", "n0", said([0]), at(1))
        damaged.close()
        assert [n.job for n in Store(path).nodes()] == ["k"]
        assert (tmp_path / "state.db.damaged").exists()
