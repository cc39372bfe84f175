"""The agent itself: one store, asked by many requests, looked after in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio.to_thread

from muster.engine import PROFILE, engine_name
from muster.errors import NotFound
from muster.model import ColumnType
from muster.probe.agent.answer import Answerer, Texts
from muster.probe.agent.lives import Life
from muster.probe.agent.sampler import CpuSampler
from muster.probe.agent.store import Snapshot, Store
from muster.protocol import Engine, NodeInfo, NodeRank, NodeTable, QueryRequest, RankRef, TableColumn


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts for /metrics."""

    ranks_alive: int
    lives: int
    rows: int
    rows_lost: int
    rows_expired: int
    recorder_errors: int


class Agent:
    """Every method that touches the store takes its lock; answers run on a snapshot without it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._sampler = CpuSampler()
        self._texts = Texts()

    def refresh(self) -> list[Life]:
        """Read what is new; returns all lives."""
        with self._lock:
            self.store.refresh()
            return list(self.store.lives)

    def sample(self) -> None:
        """Take one CPU sample of every rank that runs."""
        with self._lock:
            for life in self.store.newest():
                if life.alive and life.meta is not None and life.thread().state is not None:
                    rows, cpu = self._sampler.sample(life.meta.pid)
                    self.store.cpu[life.number] = cpu
                    if rows:
                        self.store.add_cpu_rows(life, rows)
                elif life.meta is not None:
                    self._sampler.forget(life.meta.pid)

    def node(self) -> NodeInfo:
        """The answer of `GET /v1/node`, made anew."""
        with self._lock:
            self.store.refresh()
            lives = self.store.newest()
            sizes = [x.meta.world_size for x in lives if x.meta is not None and x.meta.world_size is not None]
            tables = self.store.tables()
            ranks = [_node_rank(x) for x in lives]
        node = self.store.node
        return NodeInfo(
            engine=_engine(),
            job=node.job,
            node=node.node,
            host=node.host,
            now=datetime.now(UTC),
            world_size=max(sizes, default=None),
            ranks=ranks,
            tables=[_node_table(name, columns) for name, columns in tables.items()],
        )

    def stats(self) -> Stats:
        with self._lock:
            lives = self.store.lives
            return Stats(
                ranks_alive=sum(x.alive for x in lives),
                lives=len(lives),
                rows=sum(sum(x.kept.values()) for x in lives),
                rows_lost=sum(x.rows_lost for x in lives),
                rows_expired=sum(self.store.expired.values()),
                recorder_errors=sum(sum(x.directory.errors().values()) for x in lives),
            )

    async def answer(self, request: QueryRequest, cancelled: threading.Event) -> bytes:
        """All answers of one request, in its order. `cancelled` stops the work within 50 ms.

        Raises NotFound when the request names a rank or generation that is not here.
        """
        return await anyio.to_thread.run_sync(self._answer, request, cancelled)

    def _answer(self, request: QueryRequest, cancelled: threading.Event) -> bytes:
        until = time.monotonic() + request.deadline_ms / 1000
        with self._lock:
            self.store.refresh()
            lives = self._chosen(request.ranks)
            tables = self.store.tables()
            snapshot: Snapshot = self.store.snapshot(lives)
        try:
            answerer = Answerer(snapshot, tables.keys(), self._texts, [x.rank for x in lives], cancelled)
            parts = []
            for query in request.queries:
                if cancelled.is_set():
                    break
                parts.append(answerer.answer(query, until))
            return b"".join(parts)
        finally:
            snapshot.close()

    def _chosen(self, wanted: Sequence[RankRef] | None) -> list[Life]:
        if wanted is None:
            return self.store.newest()
        here = {(x.rank, x.meta.generation): x for x in self.store.lives if x.meta is not None}
        missing = [w for w in wanted if (w.rank, w.generation) not in here]
        if missing:
            names = ", ".join(f"rank {m.rank} of generation {m.generation}" for m in missing[:4])
            raise NotFound(
                f"{names} is not on this node." if len(missing) == 1 else f"{names}: not on this node.",
                hint="Read GET /v1/node for the ranks that are.",
                ranks=sorted({m.rank for m in missing}),
            )
        return [here[w.rank, w.generation] for w in wanted]


def _engine() -> Engine:
    name, version = engine_name().split()
    return Engine(name=name, version=version, profile=dict(PROFILE))


def _node_rank(life: Life) -> NodeRank:
    meta = life.meta
    assert meta is not None
    now = datetime.now(UTC)
    ended = life.exit.at_ns if life.exit is not None and not life.alive else None
    newest = life.last_row_ns or meta.started_ns
    return NodeRank(
        rank=life.rank,
        generation=meta.generation,
        local_rank=meta.local_rank,
        local_world_size=meta.local_world_size,
        node_rank=meta.node_rank,
        role=meta.role,
        role_name=meta.role_name,
        role_rank=meta.role_rank,
        role_world_size=meta.role_world_size,
        pid=meta.pid,
        status=life.status,  # type: ignore[arg-type]
        started_at=datetime.fromtimestamp(meta.started_ns / 1e9, UTC),
        last_seen=now if ended is None else datetime.fromtimestamp(ended / 1e9, UTC),
        last_progress_s=max(0.0, time.time() - newest / 1e9),
    )


def _node_table(full_name: str, columns: Sequence[ColumnType]) -> NodeTable:
    schema, _, name = full_name.partition(".")
    return NodeTable(schema=schema, name=name, columns=[TableColumn(name=c.name, type=c.type) for c in columns])
