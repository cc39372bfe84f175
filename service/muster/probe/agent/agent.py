"""The agent itself: one store, asked by many requests, looked after in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio.to_thread

from muster.engine import PROFILE, engine_name
from muster.errors import NotFound
from muster.model import ColumnType
from muster.probe.agent.answer import Answerer, Texts
from muster.probe.agent.lives import Life
from muster.probe.agent.sampler import CpuSampler
from muster.probe.agent.snapshot import Snapshot
from muster.probe.agent.sources import Rows, Source, Target
from muster.probe.agent.store import Store
from muster.protocol import Engine, NodeInfo, NodeRank, NodeTable, QueryRequest, RankRef, TableColumn
from muster.tables import CPU_UTILIZATION


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts for /metrics; of rows by rank (None: of the node) and table."""

    ranks_alive: int
    lives: int
    rows: Mapping[tuple[int | None, str], int]
    rows_lost: Mapping[tuple[int | None, str], int]
    rows_expired: Mapping[tuple[int | None, str], int]
    recorder_errors: int
    store_errors: int
    background_errors: int


class Agent:
    """Every method that touches the store takes its lock; answers run on a snapshot without it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._sampler = CpuSampler()
        self._texts = Texts()
        self._failures = 0

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
                    self.store.add(Rows(CPU_UTILIZATION, rows, life.number))
                elif life.meta is not None:
                    self._sampler.forget(life.meta.pid)

    def offer(self, source: Source) -> None:
        """Offer the tables of a source, though they have no rows yet."""
        with self._lock:
            for table in source.tables:
                self.store.offer(table)

    def observe(self, source: Source) -> None:
        """Let a source look, without the lock, and keep what it found."""
        with self._lock:
            targets = [_target(x) for x in self.store.newest() if x.meta is not None and x.same_machine_boot]
        found = source.look(targets)
        with self._lock:
            for rows in found:
                self.store.add(rows)

    def count_failure(self) -> None:
        """Background work failed and goes on."""
        self._failures += 1

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
            held = [(x.rank, x.kept) for x in self.store.owners()]
            return Stats(
                ranks_alive=sum(x.alive for x in lives),
                lives=len(lives),
                rows=_by_rank((rank, {t: k.rows for t, k in kept.items()}) for rank, kept in held),
                rows_lost=_by_rank((x.rank, x.lost) for x in lives),
                rows_expired=dict(self.store.expired),
                recorder_errors=sum(sum(x.directory.errors().values()) for x in lives),
                store_errors=sum(self.store.errors.values()),
                background_errors=self._failures,
            )

    async def answer(self, request: QueryRequest, cancelled: threading.Event) -> bytes:
        """All answers of one request, in its order. `cancelled` stops the work within 50 ms.

        Raises NotFound when none of the ranks that the request names is here. Where only some are, the answers are over
        those and say so: `ranks` in the metadata are those that they speak for, `missing` the others.
        """
        until = time.monotonic() + request.deadline_ms / 1000
        return await anyio.to_thread.run_sync(self._answer, request, cancelled, until)

    def _answer(self, request: QueryRequest, cancelled: threading.Event, until: float) -> bytes:
        with self._lock:
            self.store.refresh()
            lives, missing = self._chosen(request.ranks)
            tables = self.store.tables()
            snapshot: Snapshot = self.store.snapshot(lives)
        try:
            answerer = Answerer(snapshot, tables.keys(), self._texts, [x.rank for x in lives], missing, cancelled)
            parts = []
            for query in request.queries:
                if cancelled.is_set():
                    break
                parts.append(answerer.answer(query, until))
            return b"".join(parts)
        finally:
            snapshot.close()

    def _chosen(self, wanted: Sequence[RankRef] | None) -> tuple[list[Life], list[RankRef]]:
        """The lives that are asked for, and which of them are not here."""
        if wanted is None:
            return self.store.newest(), []
        found = {(w.rank, w.generation): self._of(w.rank, w.generation) for w in wanted}
        here = {x.number: x for x in found.values() if x is not None}
        missing = [w for w in wanted if found[w.rank, w.generation] is None]
        if missing and not here:
            first = missing[0]
            raise NotFound(
                f"Rank {first.rank} of generation {first.generation} is not on this node"
                + (f", nor are {len(missing) - 1} others." if len(missing) > 1 else "."),
                hint="Read GET /v1/node for the ranks that are.",
                ranks=sorted({m.rank for m in missing}),
            )
        return list(here.values()), missing

    def _of(self, rank: int, generation: str) -> Life | None:
        """The newest life of a rank in a generation; by the name that the generation has, or had until it became final."""
        lives = [x for x in self.store.lives if x.rank == rank and x.meta is not None]
        exact = [x for x in lives if x.meta is not None and x.meta.generation == generation]
        earlier = [x for x in lives if x.was_called(generation)]
        return next((found[-1] for found in (exact, earlier) if found), None)


def _by_rank(counts: Iterable[tuple[int | None, Mapping[str, int]]]) -> dict[tuple[int | None, str], int]:
    found: dict[tuple[int | None, str], int] = {}
    for rank, by_table in counts:
        for table, number in by_table.items():
            found[rank, table] = found.get((rank, table), 0) + number
    return found


def _target(life: Life) -> Target:
    meta = life.meta
    assert meta is not None
    spans = life.main_spans() if life.alive else []
    starts = [r["wait_start_ns"] or r["start_ns"] for r in life.in_flight() if life.is_main(r["thread_id"])]
    newest = max(t for t in (meta.started_ns, life.last_row_ns, *starts, *(s.start_ns for s in spans)) if t is not None)
    return Target(
        life=life.number,
        rank=life.rank,
        pid=meta.pid,
        start_ticks=meta.start_ticks,
        main_thread_id=meta.main_thread_id,
        directory=life.directory.path,
        alive=life.alive,
        started_ns=meta.started_ns,
        age_s=max(0.0, time.time() - newest / 1e9),
        median_step_s=life.median_step_s,
    )


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
