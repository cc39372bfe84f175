"""A gateway in this process, over a job whose shards hold real rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from muster.engine import arrow_type
from muster.errors import ShardUnreachable
from muster.federation.shards.base import Shard
from muster.federation.shards.local import LocalShard
from muster.gateway.app import create_app
from muster.gateway.settings import GatewaySettings
from muster.model import ShardInfo
from muster.tables import PROCESS_RANK, STEP_TIMING, TAGS, Table

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


def table(registered: Table, rows: list[dict[str, Any]]) -> pa.Table:
    columns = [*TAGS, *registered.columns]
    return pa.table({c.name: pa.array([r.get(c.name) for r in rows], arrow_type(c.type)) for c in columns})


class Silent:
    """A shard that cannot be reached."""

    def __init__(self, info: ShardInfo) -> None:
        self.info = info

    async def query(self, *_: Any) -> Any:
        raise ShardUnreachable(f"{self.info.addr} cannot be reached")


class World:
    """Two nodes of two ranks; the clock stands still until it is moved."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.now = NOW
        self.silent: set[str] = set()
        self.slow_rank: int | None = None
        self._shards: dict[str, LocalShard] = {}
        self.app = create_app(settings, shards=self._shard, clock=lambda: self.now)
        self.client = TestClient(self.app, base_url="http://127.0.0.1:8700", raise_server_exceptions=False)

    def register(self, job: str = "j", headers: dict[str, str] | None = None) -> None:
        """Both nodes register with what they hold."""
        for i in (0, 1):
            ranks = (2 * i, 2 * i + 1)
            self._shards[f"n{i}"] = shard = self._make(f"n{i}", ranks)
            body = self.registration(i)
            assert shard.info.tables is not None
            body["tables"] = [
                {
                    "schema": n.split(".")[0],
                    "name": n.split(".")[1],
                    "columns": [{"name": c.name, "type": c.type} for c in cs],
                }
                for n, cs in shard.info.tables.items()
            ]
            answer = self.client.put(f"/jobs/{job}/nodes/n{i}", json=body, headers=headers or {})
            assert answer.status_code == 200, answer.text

    def registration(self, i: int) -> dict[str, Any]:
        started = (self.now - timedelta(seconds=600)).isoformat()
        ranks = [
            {"rank": r, "local_rank": r % 2, "node_rank": i, "generation": "g", "pid": 100 + r, "started_at": started}
            for r in (2 * i, 2 * i + 1)
        ]
        return {"addr": f"http://127.0.0.1:{9000 + i}", "host": f"n{i}", "world_size": 4, "ranks": ranks}

    def _shard(self, info: ShardInfo) -> Shard:
        return Silent(info) if info.id in self.silent else self._shards[info.id]

    def _make(self, name: str, ranks: tuple[int, ...]) -> LocalShard:
        steps, states = [], []
        now_ns = int(self.now.timestamp() * 1e9)
        for rank in ranks:
            tags = {"_rank": rank, "_host": name, "_generation": "g", "_node_rank": rank // 2, "_local_rank": rank % 2}
            slow = rank == self.slow_rank
            for step in range(1, 201):
                wait = 1.0 if slow or self.slow_rank is None else 16.0
                jitter = (step * 7919 + rank * 104729) % 100 / 500  # up to 0.2 ms
                duration = 0.036 if self.slow_rank is not None else 0.021
                steps.append(
                    tags
                    | {
                        "rank": rank, "world_size": 4, "local_step": step, "global_step": step, "tokens": 1024,
                        "step_duration_sec": duration + jitter / 1000, "comm_blocked_ms": wait,
                        "phase": "warmup" if step == 1 else None, "step_source": "user", "comm_source": "patch",
                        "end_ns": now_ns - (200 - step) * 21_000_000,
                    }
                )  # fmt: skip
            states.append(
                tags
                | {
                    "rank": rank, "world_size": 4, "pid": 100 + rank, "status": "running", "state": "S", "as_of_ns": now_ns,
                    "started_ns": now_ns - 600_000_000_000, "last_row_ns": now_ns - 5_000_000, "age_s": 0.005,
                    "last_local_step": 200, "last_global_step": 200, "oldest_global_step": 1, "median_step_s": 0.021,
                    "rows_lost": 0, "recorder_errors": 0, "step_source": "user",
                }
            )  # fmt: skip
        tables = {STEP_TIMING.full_name: table(STEP_TIMING, steps), PROCESS_RANK.full_name: table(PROCESS_RANK, states)}
        return LocalShard(name, name, ranks, tables)


@pytest.fixture
def world() -> Iterator[World]:
    made = World(GatewaySettings(evaluate_s=0))
    with made.client:
        yield made


@pytest.fixture
def job(world: World) -> World:
    """The world with its job registered."""
    world.register()
    return world
