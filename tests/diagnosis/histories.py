"""Synthetic histories of lock-step jobs: what the rings of every rank would hold, as rows, and jobs made of them.

A step ends when its slowest rank has done its own work and the exchange is over; every other rank was blocked meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from muster.engine import arrow_type
from muster.errors import ShardUnreachable
from muster.federation.merge import Merger
from muster.federation.nodes import cluster_nodes
from muster.federation.service import Federation
from muster.federation.shards.base import Shard, SubAnswer
from muster.federation.shards.local import LocalShard
from muster.model import JobView, RankInfo, RankStatus, ShardInfo
from muster.protocol import RankRef, SubQuery
from muster.sql.planner import Planner
from muster.tables import CHECKPOINT, PROCESS_RANK, REGISTRY, STEP_TIMING, TAGS, Table

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
NOW_NS = int(NOW.timestamp()) * 1_000_000_000
OwnTime = Callable[[int, int, random.Random], float]  # (rank, step, random) to ms


def steady(ms: float = 20.0, jitter: float = 0.03) -> OwnTime:
    """The same work everywhere, with normal jitter."""
    return lambda rank, step, rng: max(0.1 * ms, rng.gauss(ms, jitter * ms))


def slowed(base: OwnTime, ranks: Collection[int], extra_ms: float, since: int = 0) -> OwnTime:
    """Some ranks take longer from a step on."""
    return lambda rank, step, rng: base(rank, step, rng) + (extra_ms if rank in ranks and step >= since else 0.0)


@dataclass
class History:
    """A job: rows per table and rank (in tables of a node: per node), its roster, and which nodes do not answer."""

    world: int
    nodes: int
    rows: dict[str, dict[int, list[dict[str, Any]]]]
    roles: Mapping[int, str] = field(default_factory=dict)
    role_names: Mapping[int, str] = field(default_factory=dict)
    roster: dict[int, RankStatus] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    lacking: Mapping[str, set[int]] = field(default_factory=dict)  # table to nodes that do not have it

    def node_of(self, rank: int) -> int:
        return rank * self.nodes // self.world

    def host(self, rank: int) -> str:
        return f"n{self.node_of(rank)}"

    def now(self, rank: int) -> dict[str, Any]:
        """The rank's row of process.rank, to be changed in place."""
        return self.rows["process.rank"][rank][0]

    def vanish(self, rank: int) -> None:
        """The rank was never seen: no rows at all."""
        self.roster[rank] = RankStatus.MISSING
        for table in self.rows.values():
            table.pop(rank, None)

    def table(self, table: Table, ranks: Collection[int]) -> pa.Table:
        columns = [*TAGS, *table.columns]
        data: dict[str, list[Any]] = {c.name: [] for c in columns}
        of_node = table.scope == "node"
        for key in sorted({self.node_of(r) for r in ranks} if of_node else ranks):
            rank, node = (None, key) if of_node else (key, self.node_of(key))
            tags = {
                "_host": f"n{node}", "_addr": f"http://n{node}:8701", "_rank": rank, "_node_rank": node,
                "_local_rank": rank, "_role": None if rank is None else self.roles.get(rank),
                "_generation": None if of_node else "g1",
            }  # fmt: skip
            for row in self.rows.get(table.full_name, {}).get(key, []):
                for column in columns:
                    data[column.name].append(tags.get(column.name, row.get(column.name)))
        return pa.table([pa.array(data[c.name], arrow_type(c.type)) for c in columns], names=[c.name for c in columns])

    def tables(self, ranks: Collection[int]) -> dict[str, pa.Table]:
        """What the nodes of these ranks hold. An optional table is there only where the history has it."""
        nodes = {self.node_of(r) for r in ranks}
        held = [
            t
            for n, t in REGISTRY.items()
            if (n in self.rows if t.optional else t.scope == "rank") and not nodes <= self.lacking.get(n, set())
        ]
        return {t.full_name: self.table(t, ranks) for t in held}

    def present(self, node: int | None = None) -> list[int]:
        missing = {r for r, s in self.roster.items() if s is RankStatus.MISSING}
        return [r for r in range(self.world) if r not in missing and node in (None, self.node_of(r))]

    def view(self, shards: Sequence[ShardInfo]) -> JobView:
        infos = []
        for rank in range(self.world):
            row = self.rows["process.rank"].get(rank, [None])[0]
            status = self.roster.get(rank) or RankStatus(row["status"] if row else "missing")
            seen = status is not RankStatus.MISSING
            infos.append(
                RankInfo(
                    rank=rank,
                    generation="g1" if seen else None,
                    node=self.host(rank) if seen else None,
                    host=self.host(rank) if seen else None,
                    node_rank=self.node_of(rank),
                    role=self.roles.get(rank),
                    role_name=self.role_names.get(rank, "default"),
                    status=status,
                    last_seen=NOW if seen else None,
                )
            )
        return JobView("j", "g1", self.world, tuple(infos), tuple(shards), NOW)


def running(
    world: int = 6,
    *,
    nodes: int = 3,
    steps: int = 120,
    own: OwnTime | None = None,
    comm_ms: float = 3.0,
    seed: int = 0,
    timed: bool = True,
    phases: Mapping[int, str] | None = None,
    extra: Callable[[int], float] | None = None,
    counts: Callable[[int], int] | None = None,
    tokens: Callable[[int], int] | None = None,
    comm: Callable[[int, random.Random], float] | None = None,
) -> History:
    """A job in the middle of its life. `phases`: steps that held a checkpoint or evaluation; `extra`: ms more in a step, on
    every rank; `counts`: how many steps a rank counts for one of the job."""
    rng = random.Random(seed)
    own = own or steady()
    phases = {0: "warmup", **(phases or {})}
    history = History(world, nodes, {n: {} for n, t in REGISTRY.items() if not t.optional})
    durations: list[float] = []
    timing: dict[int, list[dict[str, Any]]] = {r: [] for r in range(world)}
    end_ns = NOW_NS - int(steps * 30e6)
    for step in range(steps):
        mine = [own(r, step, rng) + (extra(step) if extra else 0.0) for r in range(world)]
        exchange = comm(step, rng) if comm else comm_ms * rng.uniform(0.95, 1.05)
        whole = max(mine) + exchange
        durations.append(whole)
        end_ns += int(whole * 1e6)
        for rank in range(world):
            for part in range(counts(rank) if counts else 1):
                n = counts(rank) if counts else 1
                timing[rank].append(
                    {
                        "local_step": step * n + part + 1, "global_step": step * n + part, "rank": rank,
                        "world_size": world,
                        "step_duration_sec": whole / n / 1e3,
                        "comm_blocked_ms": (whole - mine[rank]) / n if timed else None,
                        "phase": phases.get(step), "step_source": "optimizer", "is_shadow": 0, "end_ns": end_ns,
                        "tokens": tokens(rank) if tokens else None, "comm_source": "patch" if timed else None,
                    }
                )  # fmt: skip
    usual = sorted(durations)[len(durations) // 2] / 1e3 if durations else None
    shift = NOW_NS - end_ns
    for rank in range(world):
        for row in timing[rank]:
            row["end_ns"] += shift
        last = timing[rank][-1] if timing[rank] else None
        n = counts(rank) if counts else 1
        history.rows["process.rank"][rank] = [
            {
                "rank": rank, "world_size": world, "pid": 1000 + rank, "status": "running", "state": "S",
                "wchan": "futex_wait_queue", "as_of_ns": NOW_NS + rank * 1_000_000,
                "started_ns": NOW_NS - int(sum(durations) * 1e6) - 2_000_000_000, "last_row_ns": NOW_NS, "age_s": 0.012,
                "last_local_step": last["local_step"] if last else None,
                "last_global_step": last["global_step"] if last else None,
                "oldest_global_step": 0 if last else None, "median_step_s": usual / n if usual else None,
                "last_op": "all_reduce" if last else None, "last_pg": "default_pg" if last else None,
                "last_seq": steps if last else None, "step_source": "optimizer" if last else None, "rows_lost": 0,
                "recorder_errors": 0, "cpu_pct": 60.0, "rss_kb": 500_000, "open_span": "forward",
            }
        ]  # fmt: skip
    history.rows["python.torch_step_timing"] = timing
    return history


def waiting(
    history: History,
    ranks: Collection[int],
    seconds: float,
    *,
    op: str = "all_reduce",
    group: Collection[int] = (),
    peer: int | None = None,
) -> None:
    """These ranks wait in the next collective of the group (default: of all ranks), or for a peer."""
    members = sorted(group) or list(range(history.world))
    for rank in ranks:
        row = history.now(rank)
        row |= {
            "age_s": seconds, "inflight_op": op, "inflight_pg": "default_pg", "inflight_seq": (row["last_seq"] or 0) + 1,
            "inflight_ranks": str(members), "inflight_peer": peer, "inflight_age_s": seconds,
            "last_row_ns": row["as_of_ns"] - int(seconds * 1e9), "open_span": "backward", "cpu_pct": 1.0,
        }  # fmt: skip


def hanging(history: History, rank: int, seconds: float, **row: Any) -> None:
    """A rank stands still outside any collective, all others wait for it."""
    waiting(history, [r for r in history.present() if r != rank], seconds)
    now = history.now(rank)
    now |= {"age_s": seconds + 0.02, "last_row_ns": now["as_of_ns"] - int(seconds * 1e9), "cpu_pct": 0.0} | row


def dead(history: History, rank: int, *, after_s: float = 3.0, **row: Any) -> None:
    """A rank is gone since `after_s` ago."""
    now = history.now(rank)
    now |= {
        "status": "dead", "state": None, "age_s": after_s, "exit_kind": "signal", "exit_signal": 9,
        "exit_message": "killed by SIGKILL", "exit_ns": NOW_NS - int(after_s * 1e9), "inflight_op": None, "open_span": None,
    } | row  # fmt: skip


def finished(history: History, ranks: Collection[int], code: int | None = 0) -> None:
    """These ranks ended cleanly."""
    for rank in ranks:
        history.now(rank).update(
            status="finished", state=None, exit_kind="exit", exit_code=code, exit_ns=NOW_NS, open_span=None, age_s=30.0
        )


def checkpointed(history: History, rank: int, step: int, age_s: float) -> None:
    history.rows[CHECKPOINT.full_name].setdefault(rank, []).append(
        {"ts": NOW_NS - int(age_s * 1e9), "rank": rank, "step": step, "kind": "torch.save", "duration_ms": 800.0}
    )


class DownShard:
    """A node that cannot be reached."""

    def __init__(self, info: ShardInfo) -> None:
        self.info = info

    async def query(
        self,
        subqueries: Sequence[SubQuery],
        ranks: Sequence[RankRef],
        schemas: Mapping[str, pa.Schema],
        deadline_s: float,
    ) -> Sequence[SubAnswer]:
        raise ShardUnreachable(f"{self.info.addr} cannot be reached: connection refused")


class Cluster:
    """Federates histories over one shard per node, and remembers the shards of the last job."""

    def __init__(self) -> None:
        self._shards: dict[str, Shard] = {}
        self.federation = Federation(
            planner=Planner(),
            shards=lambda info: self._shards[info.id],
            mergers={"diagnosis": Merger(), "adhoc": Merger()},
            at_once={"diagnosis": 4, "adhoc": 4},
        )

    def view(self, history: History) -> JobView:
        """Put the history onto shards and say how the registry would see it."""
        self._shards.clear()
        for node in range(history.nodes):
            ranks = history.present(node)
            if not ranks:
                continue
            shard: Shard = LocalShard(f"n{node}", f"n{node}", ranks, history.tables(ranks))
            self._shards[f"n{node}"] = DownShard(shard.info) if node in history.down else shard
        return history.view([s.info for s in self._shards.values()])


def whole(history: History, view: JobView) -> tuple[dict[str, pa.Table], pa.Table]:
    """All rows that the nodes which answer hold, as one table each, and the roster: for the oracle."""
    ranks = [r for r in history.present() if history.node_of(r) not in history.down]
    return history.tables(ranks), cluster_nodes(view)


__all__ = ["PROCESS_RANK", "STEP_TIMING", "Cluster", "History", "running"]
