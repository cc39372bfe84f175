"""Real agents on real sockets, over what real processes have recorded; one DuckDB with the rows that the agents hold."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pyarrow as pa
import uvicorn
from httpx_aiohttp import AiohttpTransport

from muster.federation.merge import Merger
from muster.federation.nodes import cluster_nodes
from muster.federation.service import Federation, StatementResult
from muster.federation.shards.agent import AgentShard
from muster.model import ColumnType, JobView, RankInfo, RankStatus, ShardInfo, ShardKind
from muster.probe.agent.agent import Agent
from muster.probe.agent.app import AgentApp
from muster.probe.agent.snapshot import Node
from muster.probe.agent.store import Store
from muster.protocol import NodeInfo
from muster.sql.plan import Statement
from muster.sql.planner import Planner
from oracle import Oracle

RECORD = """
import sys
import muster.probe as probe
assert probe.start(), probe.errors()
steps, rank, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
tables = [probe.table(name, score=float, step=int, tag=str) for name in names]
for step in range(1, steps + 1):
    with probe.span("work", phase="forward", batch=step):
        with probe.collective("all_reduce", nbytes=8 * rank, seq=step):
            pass
    probe.step(tokens=100 + rank)
    for table in tables:
        table.row(score=rank + step / 4, step=step, tag=None if step % 3 else "third")
"""


class RealAgent:
    """An agent over the directory of a node, served from a thread."""

    def __init__(self, node: str, directory: Path) -> None:
        self.node = node
        self.directory = directory
        listener = self._listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.addr = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._store = Store([directory], Node("j", node, node, self.addr), rows_per_table=50_000, memory_limit="256MB")
        app = AgentApp(Agent(self._store), None).build()
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        end = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < end, "the agent does not start"
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(5)
        self._listener.close()
        self._store.close()

    def record(self, rank: int, steps: int, tables: Sequence[str] = ()) -> None:
        """A process of its own that records as this rank and ends."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")} | {
            "MUSTER_JOB": "j", "MUSTER_DIR": str(self.directory), "MUSTER_GENERATION": "g", "MUSTER_COLLECT": "none",
            "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "6",
        }  # fmt: skip
        words = [sys.executable, "-c", RECORD, str(steps), str(rank), *tables]
        subprocess.run(words, env=environ, check=True, timeout=60)

    def info(self) -> NodeInfo:
        answer = httpx.get(f"{self.addr}/v1/node", trust_env=False, timeout=10)
        return NodeInfo.model_validate_json(answer.raise_for_status().content)

    def rows(self, table: str) -> pa.Table | None:
        """All rows of a table, asked of the agent itself; None where it does not have the table."""
        if table not in {f"{t.schema_}.{t.name}" for t in self.info().tables}:
            return None
        body = {"queries": [{"id": "a", "sql": f"SELECT * FROM {table}"}]}
        answer = httpx.post(f"{self.addr}/v1/query", json=body, trust_env=False, timeout=10).raise_for_status()
        found = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
        assert b"error" not in (found.schema.metadata or {}), found.schema.metadata
        return found.replace_schema_metadata(None)


class RealJob:
    """Agents and the view that a gateway would have of them."""

    def __init__(self, agents: Sequence[RealAgent], world_size: int) -> None:
        self.agents = agents
        shards = []
        ranks = {r: RankInfo(r) for r in range(world_size)}
        for place, agent in enumerate(agents):
            info = agent.info()
            for rank in info.ranks:
                ranks[rank.rank] = RankInfo(
                    rank.rank, rank.generation, agent.node, agent.node, agent.addr, rank.local_rank, node_rank=place,
                    pid=rank.pid, status=RankStatus(rank.status), last_seen=datetime.now(UTC),
                )  # fmt: skip
            shards.append(
                ShardInfo(
                    id=agent.node, kind=ShardKind.AGENT, addr=agent.addr, host=agent.node, node_rank=place,
                    ranks=tuple(r.rank for r in info.ranks), engine=f"{info.engine.name} {info.engine.version}",
                    profile=info.engine.profile, tables={
                        f"{t.schema_}.{t.name}": tuple(ColumnType(c.name, c.type) for c in t.columns) for t in info.tables
                    },
                )
            )  # fmt: skip
        generation = next((r.generation for r in ranks.values() if r.generation), None)
        known = tuple(ranks[r] for r in sorted(ranks))
        self.view = JobView("j", generation, world_size, known, tuple(shards), datetime.now(UTC))

    def believe(self, node: str, table: str, of: str | None) -> None:
        """Let the roster know of a node other than the node is: that it has a table like node `of`, or (None) has not."""
        like = next((s.tables or {} for s in self.view.shards if s.id == of), {})
        shards = []
        for shard in self.view.shards:
            others = {n: c for n, c in (shard.tables or {}).items() if n != table}
            held = others | ({table: like[table]} if table in like else {})
            shards.append(replace(shard, tables=held) if shard.id == node else shard)
        self.view = replace(self.view, shards=tuple(shards))

    async def ask(self, sql: str) -> StatementResult:
        merger = Merger(memory_limit="256MB")
        async with httpx.AsyncClient(transport=AiohttpTransport(), trust_env=False) as client:
            federation = Federation(
                planner=Planner(), shards=lambda info: AgentShard(info, client), mergers={"adhoc": merger},
                at_once={"adhoc": 1},
            )  # fmt: skip
            try:
                return (await federation.run([Statement("q", sql)], self.view, lane="adhoc"))["q"]
            finally:
                merger.close()

    def oracle(self, tables: Sequence[str], without: frozenset[str] = frozenset()) -> Oracle:
        """One DuckDB with the rows that the agents hold, but for those of some nodes."""
        whole: Mapping[str, list[pa.Table]] = {t: [] for t in tables}
        for agent in self.agents:
            for table in tables:
                rows = agent.rows(table)
                if rows is not None:
                    whole[table].append(rows.slice(0, 0) if agent.node in without else rows)
        return Oracle({t: pa.concat_tables(parts) for t, parts in whole.items()}, cluster_nodes(self.view))
