"""A bundle from ring files: what `muster run` leaves when a job ends badly, one directory per node.

The agent's own store reads them, so the tables are those that the agent would have served when the files were copied.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.compute as pc

from muster.bundle.manifest import Manifest, RankEntry, Source, newest, read_json
from muster.bundle.view import node_entries, rank_entries
from muster.bundle.writer import BundleWriter
from muster.engine import arrow_schema, open_engine
from muster.errors import BadRequest, ShardFailed
from muster.federation.wire import decode
from muster.model import JOB_ID, ColumnType
from muster.probe.agent.agent import Agent
from muster.probe.agent.lives import Life
from muster.probe.agent.register import registration
from muster.probe.agent.snapshot import Node
from muster.probe.agent.store import Store
from muster.probe.bundle import BUNDLE_FORMAT
from muster.protocol import MAX_DEADLINE_MS, NodeInfo, QueryRequest, RankRef, SubQuery
from muster.registry import roster
from muster.tables import PROCESS_EXIT, PROCESS_RANK

_RINGS = "rings"  # the directory below which the ranks are
_ROWS = 5_000_000
_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class _Left:
    """One directory of ring files, opened. `at_ns`: when it was copied; `alive`: ranks that still ran then."""

    directory: Path
    job: str
    at_ns: int
    alive: frozenset[int]
    exit: Mapping[str, Any] | None
    store: Store
    agent: Agent
    info: NodeInfo

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_ns / 1e9, UTC)


def is_rings(directory: Path) -> bool:
    """Whether `muster run` left this."""
    return (directory / _RINGS).is_dir()


def from_rings(directories: Sequence[Path], out: Path) -> Manifest:
    """Write a bundle of what `muster run` left of one job on its nodes. Raises BadRequest for directories that are not of
    one job or hold no rank, Conflict for a place that is taken."""
    with _opened(directories) as left:
        writer = BundleWriter(out)
        try:
            return _write(left, writer)
        except BaseException:
            writer.abandon()
            raise


@contextmanager
def _opened(directories: Sequence[Path]) -> Iterator[list[_Left]]:
    left: list[_Left] = []
    try:
        for directory in directories:
            left.append(_open(directory))  # noqa: PERF401 - what is open is closed when the next one fails
        jobs = sorted({x.job for x in left})
        if len(jobs) != 1:
            raise BadRequest(f"The directories are of several jobs: {', '.join(jobs)}.", hint="Import one job at a time.")
        names = [x.info.node for x in left]
        if len(set(names)) != len(names):
            raise BadRequest("Two directories are of the same node.", hint="Give one directory for each node.")
        yield left
    finally:
        for found in left:
            found.store.close()


def _open(directory: Path) -> _Left:
    said = read_json(directory)
    job, form = said.get("job"), said.get("format")
    if not isinstance(job, str) or not JOB_ID.fullmatch(job) or type(form) is not int:
        raise BadRequest(f"{directory / 'job.json'} names no job.", hint=_WHOLE)
    if form > BUNDLE_FORMAT:
        raise BadRequest(
            f"{directory / 'job.json'} has format {form}; this Muster reads formats up to {BUNDLE_FORMAT}.",
            hint="Install a newer Muster (`muster version` prints this one).",
        )
    listed = said.get("roster")
    entries = [r for r in listed if isinstance(r, dict)] if isinstance(listed, list) else []
    node = next((str(r["node"]) for r in entries if r.get("node")), "node")
    host = next((str(r["host"]) for r in entries if r.get("host")), node)
    named = Node(_RINGS, re.sub(r"[^A-Za-z0-9._-]", "-", node)[:253], node[:512] or host, f"rings:{node}"[:512])
    store = Store([directory], named, rows_per_table=_ROWS, memory_limit="4GB")
    try:
        agent = Agent(store)
        info = agent.node()
        if not info.ranks:
            raise BadRequest(
                f"{directory / _RINGS} holds no rank that can be read.",
                hint="The directories must belong to you and hold rank-<n>/<life>/; copy it whole.",
            )
        at = _ended(said, store.lives)
        alive = frozenset(r["rank"] for r in entries if r.get("alive") is True and isinstance(r.get("rank"), int))
        missing = sorted({r["rank"] for r in entries if isinstance(r.get("rank"), int)} - {r.rank for r in info.ranks})
        if missing:
            raise BadRequest(f"{directory} lacks the files of ranks {missing[:8]} that its job.json names.", hint=_WHOLE)
    except BaseException:
        store.close()
        raise
    return _Left(directory, job, at, alive, said.get("exit"), store, agent, _as_of(info, at, alive))


def _ended(said: Mapping[str, Any], lives: Sequence[Life]) -> int:
    """When the files were copied: at the end of the command, or at the newest row if that is later."""
    stamps = [x.last_row_ns for x in lives if x.last_row_ns is not None]
    end = said.get("exit")
    try:
        stamps.append(int(datetime.fromisoformat(end["ended"]).timestamp() * 1e9) if isinstance(end, dict) else 0)
    except (KeyError, TypeError, ValueError):
        raise BadRequest("job.json does not say when the command ended.", hint=_WHOLE) from None
    return max(stamps)


def _as_of(info: NodeInfo, at_ns: int, alive: frozenset[int]) -> NodeInfo:
    """What the node would have said of itself then."""
    at = datetime.fromtimestamp(at_ns / 1e9, UTC)
    late = (info.now - at).total_seconds()
    ranks = []
    for rank in info.ranks:
        update: dict[str, Any] = {"last_seen": min(rank.last_seen or at, at)}
        if rank.last_progress_s is not None:
            update["last_progress_s"] = max(0.0, rank.last_progress_s - late)
        if rank.rank in alive:
            update |= {"status": "running", "last_seen": at}
        ranks.append(rank.model_copy(update=update))
    return info.model_copy(update={"now": at, "ranks": ranks})


def _write(left: Sequence[_Left], writer: BundleWriter) -> Manifest:
    at = newest([x.at for x in left])
    assert at is not None
    entry = roster.JobEntry(left[0].job, at)
    for found in left:
        said = registration(found.info, f"rings:{found.info.node}").model_copy(update={"now": found.at})
        roster.merge(entry, found.info.node, said, found.at)
    # a node that ended long before the others is still part of the recording: nothing here is overdue
    view = roster.view(entry, at, expires_s=math.inf)
    ranks = {r.rank: r for r in rank_entries(view)}
    for found in left:
        offered = {f"{t.schema_}.{t.name}": [ColumnType(c.name, c.type) for c in t.columns] for t in found.info.tables}
        for name, columns in offered.items():
            writer.offer(found.info.node, name, columns)
        schemas = _schemas(offered)
        for rank in [r for r in ranks.values() if r.node == found.info.node]:
            ranks[rank.rank] = _tables(found, rank, schemas, writer)
    unread = [f"{x.directory}: {place} could not be read ({n} times)" for x in left for place, n in _unread(x)]
    return writer.finish(
        job=view.job,
        generation=view.generation,
        recorded_at=at,
        source=Source(kind=_RINGS),
        ranks=[ranks[r] for r in sorted(ranks)],
        nodes=[
            n.model_copy(update={"engine": x.info.engine, "as_of": x.at})
            for n in node_entries(view)
            for x in left
            if x.info.node == n.node
        ],
        notes=unread,
        previous_generations=list(view.previous_generations),
        exit=dict(left[0].exit) if left[0].exit else None,
    )


def _tables(found: _Left, rank: RankEntry, schemas: Mapping[str, pa.Schema], writer: BundleWriter) -> RankEntry:
    """Write all tables of one rank; gives the rank with what its agent would say of its history."""
    queries = [
        SubQuery(id=str(i), sql=f"SELECT * FROM {name}", deadline_ms=MAX_DEADLINE_MS, max_rows=_ROWS, max_bytes=_BYTES)
        for i, name in enumerate(schemas)
    ]
    asked = QueryRequest(
        queries=queries, ranks=[RankRef(rank=rank.rank, generation=rank.generation or "")], deadline_ms=MAX_DEADLINE_MS
    )
    body = anyio.run(found.agent.answer, asked, threading.Event())
    ran = rank.rank in found.alive
    answers = decode(body, queries, {q.id: schema for q, schema in zip(queries, schemas.values(), strict=True)})
    for name, answer in zip(schemas, answers, strict=True):
        if answer.table is None:
            raise answer.error or ShardFailed(f"{name} of rank {rank.rank} cannot be read.")
        rows = answer.table.replace_schema_metadata(None)
        if name == PROCESS_RANK.full_name:
            rows = _then(rows, found.at_ns, ran)
        elif name == PROCESS_EXIT.full_name and ran:
            rows = rows.filter(pc.not_equal(rows.column("kind"), pa.scalar("vanished")))
        elif name == PROCESS_EXIT.full_name:
            rows = _unseen(rows)
        writer.add(found.info.node, name, rank.rank, rows)
        rank = rank.model_copy(update={"oldest_step": answer.oldest_step, "rows_lost": answer.rows_lost})
    return rank


def _then(rows: pa.Table, at_ns: int, ran: bool) -> pa.Table:
    """process.rank as of when the files were copied: ages are told from then, and a rank that still ran had not ended."""
    found = rows.to_pylist()
    for row in found:
        late = (row["as_of_ns"] - at_ns) / 1e9
        row["as_of_ns"] = at_ns
        for age in ("age_s", "inflight_age_s", "open_span_age_s"):
            if row[age] is not None:
                row[age] = max(0.0, row[age] - late)
        if ran:
            row["status"] = "running"
        if ran or row["exit_kind"] == "vanished":  # nobody saw when or how it ended, so it must not look like the first
            row |= dict.fromkeys(n for n in row if n.startswith("exit_"))
    return pa.Table.from_pylist(found, rows.schema)


def _unseen(rows: pa.Table) -> pa.Table:
    """process.exit without the moments that nobody saw: a store that comes late takes the newest row's for one."""
    found = rows.to_pylist()
    for row in found:
        if row["kind"] == "vanished":
            row["ts"] = None
    return pa.Table.from_pylist(found, rows.schema)


def _unread(found: _Left) -> list[tuple[str, int]]:
    """Files of which something could not be read, and how often. Locks are not copied: that one is no loss."""
    counted: dict[str, int] = {}
    for life in found.store.lives:
        for place, number in life.directory.errors().items():
            if place.startswith("reader.") and place not in ("reader.lock", "reader.text_not_kept"):
                counted[f"rank {life.rank} {place.removeprefix('reader.')}"] = number
    return sorted(counted.items())


def _schemas(offered: Mapping[str, Sequence[ColumnType]]) -> dict[str, pa.Schema]:
    engine = open_engine(threads=1)
    try:
        return {name: arrow_schema(engine, {c.name: c.type for c in columns}) for name, columns in offered.items()}
    finally:
        engine.close()


_WHOLE = "Copy the directory again, whole, from where `muster run` wrote it."
