"""What is looked at from outside, beside the rings: rows of ranks and rows of the node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from agent.conftest import Ranks, Serve, until
from muster.probe.agent.settings import AgentSettings
from muster.probe.agent.sources import NAMES, Place, Rows, Source, Target, Unavailable, open_sources
from muster.protocol import RankRef
from muster.tables import KMSG, NET_TCP, Table


class Fake:
    """Says one message of the kernel for the node, and one connection for each rank that runs."""

    name = "fake"
    every_s = 1.0

    def __init__(self, tables: tuple[Table, ...] = (KMSG, NET_TCP)) -> None:
        self.tables = tables
        self.seen: list[Target] = []

    def look(self, targets: Sequence[Target]) -> list[Rows]:
        self.seen = list(targets)
        connections = [Rows(NET_TCP, [{"ts": 5, "rank": t.rank, "retrans": 7}], t.life) for t in targets if t.alive]
        return [Rows(KMSG, [{"timestamp": 5, "level": "err", "message": "Xid 79"}]), *connections]

    def close(self) -> None: ...


def test_rows_of_the_node_have_no_rank_and_those_of_a_rank_its_tags(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0)
    ranks.start(1)
    served = serve()
    served.ask("SELECT 1 FROM process.rank")
    served.agent.observe(Fake())
    node = served.ask("SELECT _rank, _host, _node_rank, _local_rank, _generation, message FROM process.kmsg").rows()
    assert [(r["_rank"], r["_host"], r["_local_rank"], r["message"]) for r in node] == [(None, "n0", None, "Xid 79")]
    assert node[0]["_generation"].startswith("g")
    found = served.ask("SELECT _rank, retrans FROM net.tcp ORDER BY 1").rows()
    assert [(r["_rank"], r["retrans"]) for r in found] == [(0, 7), (1, 7)]


def test_rows_of_the_node_are_seen_by_whoever_asks_for_one_of_its_ranks(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0)
    ranks.start(1)
    served = serve()
    served.ask("SELECT 1 FROM process.rank")
    served.agent.observe(Fake())
    one = RankRef(rank=1, generation=served.state()["_generation"])
    assert served.ask("SELECT count(*) AS n FROM process.kmsg", ranks=[one]).rows() == [{"n": 1}]
    assert served.ask("SELECT count(*) AS n FROM net.tcp", ranks=[one]).rows() == [{"n": 1}]


def test_a_table_is_offered_from_the_opening_of_its_source_on(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0)
    served = serve()
    assert served.ask("SELECT 1 FROM process.kmsg").error("q")["table"] == "process.kmsg"
    served.agent.offer(Fake())
    assert served.ask("SELECT count(*) AS n FROM process.kmsg").rows() == [{"n": 0}]


def test_rows_of_the_node_are_kept_within_bounds_and_counted(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0)
    served = serve(rows_per_table=100)
    served.ask("SELECT 1 FROM process.rank")
    source = Fake((KMSG,))
    for _ in range(200):
        served.agent.observe(source)
    served.agent.refresh()
    kept = served.ask("SELECT count(*) AS n FROM process.kmsg").rows()[0]["n"]
    stats = served.agent.stats()
    assert 100 <= kept <= 125
    assert stats.rows[None, "process.kmsg"] == kept
    assert stats.rows_expired[None, "process.kmsg"] == 200 - kept


def test_a_source_knows_who_stands_still(ranks: Ranks, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.probe.agent.sources.source.STALLED_S", 0.2)
    ranks.start(0, then="hang")
    ranks.start(1, then="loop")
    served = serve()
    source = Fake()
    served.ask("SELECT 1 FROM process.rank")

    def told_apart() -> bool:
        served.agent.refresh()
        served.agent.observe(source)
        return {t.rank: t.stalled for t in source.seen} == {0: True, 1: False}

    until(told_apart)


def test_a_source_that_cannot_work_says_why_and_the_others_are_opened() -> None:
    def broken(place: Place) -> Source:
        raise Unavailable(f"{place.job} has no such device")

    found, reasons = open_sources(("a", "b"), Place("j"), {"a": broken, "b": lambda _: Fake()})
    assert [s.name for s in found] == ["fake"]
    assert reasons == {"a": "j has no such device"}


def test_the_setting_names_sources_all_or_none(tmp_path: Path) -> None:
    assert AgentSettings(job="j").source_names == NAMES
    assert AgentSettings(job="j", sources="none").source_names == ()
    with pytest.raises(ValidationError, match="no source is called nonsense"):
        AgentSettings(job="j", sources="nonsense")
