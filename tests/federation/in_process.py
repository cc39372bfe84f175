"""A federation over shards in this process, and the same rows in one DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa

from muster.federation.fanout import Budget
from muster.federation.merge import Merger
from muster.federation.service import Federation, StatementResult
from muster.federation.shards.base import Shard
from muster.federation.shards.local import LocalShard
from muster.model import JobView, RankInfo, RankStatus, ShardInfo
from muster.sql.plan import Plan, Statement
from muster.sql.planner import Planner
from oracle import with_tags


class InProcess:
    """`nodes` gives the tables (without tags) of each rank of each node: `[{0: {"python.t": rows}}, …]`."""

    def __init__(self, nodes: Sequence[Mapping[int, Mapping[str, pa.Table]]]) -> None:
        self.shards: dict[str, Shard] = {}
        self._pieces: dict[str, list[pa.Table]] = {}
        infos: list[ShardInfo] = []
        ranks: list[RankInfo] = []
        for i, node in enumerate(nodes):
            tables: dict[str, list[pa.Table]] = {}
            for rank, held in node.items():
                ranks.append(RankInfo(rank, "g1", node=f"n{i}", host=f"h{i}", node_rank=i, status=RankStatus.RUNNING))
                for name, rows in held.items():
                    tables.setdefault(name, []).append(with_tags(rows, rank, host=f"h{i}", node_rank=i))
            held_here = {n: pa.concat_tables(t) for n, t in tables.items()}
            for name, rows in held_here.items():
                self._pieces.setdefault(name, []).append(rows)
            shard = LocalShard(f"n{i}", f"h{i}", list(node), held_here)
            self.shards[shard.info.id] = shard
            infos.append(shard.info)
        self.merger = Merger()
        self.view = JobView(
            "j", "g1", len(ranks), tuple(sorted(ranks, key=lambda r: r.rank)), tuple(infos), datetime.now(UTC)
        )
        self.federation = Federation(
            planner=Planner(), shards=self._shard, mergers={"diagnosis": self.merger}, at_once={"diagnosis": 2}
        )

    @property
    def tables(self) -> dict[str, pa.Table]:
        """The rows of all ranks, tags first: what one DuckDB would hold. Only where all nodes have the same columns."""
        return {name: pa.concat_tables(pieces) for name, pieces in self._pieces.items()}

    def _shard(self, info: ShardInfo) -> Shard:
        return self.shards[info.id]

    def claim(self, node: str, **changes: object) -> None:
        """Let a shard say something else of itself."""
        shards = tuple(replace(s, **changes) if s.id == node else s for s in self.view.shards)  # type: ignore[arg-type]
        self.view = replace(self.view, shards=shards)

    async def ask(self, sql: str, *, budget: Budget | None = None, deadline_s: float = 30.0) -> StatementResult:
        found = await self.federation.run([Statement("q", sql)], self.view, budget=budget, deadline_s=deadline_s)
        return found["q"]

    async def rows(self, sql: str) -> list[tuple[object, ...]]:
        found = await self.ask(sql)
        assert found.error is None, found.error
        assert found.table is not None
        return [tuple(row.values()) for row in found.table.to_pylist()]

    async def plan(self, sql: str) -> Plan:
        plan, refused = await self.federation.plan([Statement("q", sql)], self.view)
        assert not refused
        return plan
