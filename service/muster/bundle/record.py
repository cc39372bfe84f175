"""Record a live job into a bundle.

The state of all ranks (`process.rank`) is asked of all agents at once, first. Everything else is taken rank by rank, up to
the moment of that state on the clock of each node: so a job that goes on while it is recorded is seen as of one moment, and
no rank looks ahead of another because it was recorded later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.to_thread
import pyarrow as pa
import pyarrow.compute as pc

from muster.bundle.manifest import Gap, Manifest, NodeEntry, RankEntry, Source
from muster.bundle.sources import JobSource, Roster, Rows
from muster.bundle.writer import BundleWriter
from muster.errors import BadRequest, DeadlineExceeded, MusterError, OverBudget, ShardUnreachable
from muster.model import ColumnType
from muster.tables import (
    CHECKPOINT,
    COMM_COLLECTIVE,
    FLIGHT_RECORD,
    GATEWAY_TABLES,
    PG_STATUS,
    PROCESS_EXIT,
    PROCESS_RANK,
    REGISTRY,
    STEP_TIMING,
    Table,
)

_FIRST = tuple(t.full_name for t in (PROCESS_EXIT, CHECKPOINT, STEP_TIMING, COMM_COLLECTIVE, PG_STATUS, FLIGHT_RECORD))
"""Tables that most diagnoses rest on: of all ranks before anything else, in case a limit is reached."""
_AT_ONCE = 8
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """What one recording may take: the newest rows of each rank and table, bytes on disk, seconds."""

    rows: int = 50_000
    bytes: int = 4 << 30
    seconds: float = 300.0


@dataclass(slots=True)
class _Recording:
    """One recording under way."""

    source: JobSource
    writer: BundleWriter
    limits: RecordLimits
    roster: Roster
    until: float
    moments: dict[str, int] = field(default_factory=dict)  # by node, ns since the epoch on its clock
    gaps: dict[int, dict[str, Gap]] = field(default_factory=dict)
    cut: dict[int, dict[str, int]] = field(default_factory=dict)
    history: dict[int, tuple[int | None, int]] = field(default_factory=dict)  # oldest step, rows lost

    def gap(self, rank: int, table: str, error: MusterError) -> None:
        self.gaps.setdefault(rank, {})[table] = gap_of(error)


async def record(
    source: JobSource,
    out: Path,
    *,
    tables: Sequence[str] | None = None,
    limits: RecordLimits | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Write a bundle of a job and return its manifest; what could not be had is said in it.

    `tables`: only these (process.rank always). `progress(done, all, text)` is called as it goes. Raises what the source
    raises when there is no job, Conflict for a place that is taken, BadRequest for a table that nobody has,
    ShardUnreachable when no rank gives anything; then nothing is left behind.
    """
    limits = limits or RecordLimits()
    roster = await source.roster()
    writer = BundleWriter(out)
    try:
        run = _Recording(source, writer, limits, roster, anyio.current_time() + limits.seconds)
        wanted = _wanted(roster, tables)
        for node, offered in roster.tables.items():
            for name, columns in offered.items():
                if name in wanted or name == PROCESS_RANK.full_name:
                    writer.offer(node, name, columns)
        await _state(run)
        await _rows(run, wanted, progress or (lambda done, whole, text: None))
        return await anyio.to_thread.run_sync(_finish, run, tables)
    except BaseException:
        writer.abandon()
        raise


def gap_of(error: MusterError) -> Gap:
    """Why something is not in a bundle."""
    if isinstance(error, DeadlineExceeded):
        return Gap(state="timed_out", reason=error.detail[:1000])
    return Gap(state="unreachable" if isinstance(error, ShardUnreachable) else "failed", reason=error.detail[:1000])


def _wanted(roster: Roster, tables: Sequence[str] | None) -> list[str]:
    """Tables to record but the state, the most needed first."""
    offered = {name for found in roster.tables.values() for name in found} - GATEWAY_TABLES.keys()
    if tables is not None:
        unknown = sorted(set(tables) - offered)
        if unknown:
            raise BadRequest(f"No rank has {', '.join(unknown)}.", hint=f"There is {', '.join(sorted(offered))}.")
        offered &= set(tables)
    rest = sorted(offered - {PROCESS_RANK.full_name} - set(_FIRST))
    return [t for t in _FIRST if t in offered] + rest


async def _state(run: _Recording) -> None:
    """process.rank of all ranks at once; it gives each node its moment."""
    name = PROCESS_RANK.full_name
    now = int(datetime.now(UTC).timestamp() * 1e9)
    found: dict[str, pa.Table] = {}
    if any(name in offered for offered in run.roster.tables.values()):
        found, errors = await run.source.everywhere(name, run.until)
        for rank, error in errors.items():
            run.gap(rank, "*", error)
    for node in run.roster.nodes:
        rows = found.get(node.node)
        stamp = pc.max(rows.column("as_of_ns")).as_py() if rows is not None and rows.num_rows else None
        run.moments[node.node] = stamp if stamp is not None else now
        if rows is not None:
            for rank, mine in _by_rank(rows):
                run.history[rank] = _history(mine)
                run.writer.add(node.node, name, rank, mine)


async def _rows(run: _Recording, wanted: Sequence[str], progress: Progress) -> None:
    """Everything else: the needed tables of all ranks, then the others; then those of the nodes themselves."""
    first, rest = [t for t in wanted if t in _FIRST], [t for t in wanted if t not in _FIRST]
    owners = [(r.rank, r.node) for r in run.roster.ranks if r.node in run.roster.tables]
    owners = [(rank, node) for rank, node in owners if "*" not in run.gaps.get(rank, {})]
    work = [(rank, node, names) for names in (first, rest) for rank, node in owners if node is not None and names]
    done = 0
    limiter = anyio.Semaphore(_AT_ONCE)

    async def one(rank: int, node: str, names: Sequence[str]) -> None:
        nonlocal done
        async with limiter:
            await _rank(run, node, rank, names)
        done += 1
        progress(done, len(work), f"rank {rank}")

    async with anyio.create_task_group() as group:
        for rank, node, names in work:
            group.start_soon(one, rank, node, names)


async def _rank(run: _Recording, node: str, rank: int, names: Sequence[str]) -> None:
    """Tables of one rank; too much of one is asked for again with fewer rows."""
    offered = run.roster.tables[node]
    left = {name: run.limits.rows for name in names if name in offered}
    first = next((r.rank for r in run.roster.ranks if r.node == node), rank)
    left = {n: k for n, k in left.items() if _scope(n) != "node" or rank == first}
    while left:
        over = _limit_reached(run)
        if over is not None:
            for name in left:
                run.gap(rank, name, over)
            return
        statements = {n: _statement(n, offered[n], run, node, rank, k + 1) for n, k in left.items()}
        answers = await run.source.rows(node, rank, statements, run.until)
        again: dict[str, int] = {}
        for name, answer in answers.items():
            if isinstance(answer, OverBudget) and left[name] > 100:
                again[name] = left[name] // 4
            else:
                await anyio.to_thread.run_sync(_keep, run, node, rank, name, answer, left[name])
        left = again


def _keep(run: _Recording, node: str, rank: int, name: str, answer: Rows, rows: int) -> None:
    if isinstance(answer, MusterError):
        run.gap(rank, name, answer)
        return
    if answer.num_rows > rows:
        run.cut.setdefault(rank, {})[name] = rows
        answer = answer.slice(0, rows)
    oldest_first = answer.take(pa.array(range(answer.num_rows - 1, -1, -1), pa.int64()))
    run.writer.add(node, name, None if _scope(name) == "node" else rank, oldest_first)


def _statement(name: str, columns: Iterable[ColumnType], run: _Recording, node: str, rank: int, rows: int) -> str:
    """The newest rows of a table of a rank up to the node's moment, newest first."""
    entry = next(n for n in run.roster.nodes if n.node == node)
    if _scope(name) == "node":
        where = f"_rank IS NULL AND _host = {_text(entry.host)} AND _addr = {_text(entry.addr)}"
    else:
        where = f"_rank = {rank}"
    known = REGISTRY.get(name)
    order = ""
    if known is not None and known.key_time is not None and any(c.name == known.key_time[0] for c in columns):
        key, tick = known.key_time
        where += f" AND ({key} IS NULL OR {key} <= {run.moments[node] // tick})"
        order = f" ORDER BY {key} DESC"
    return f"SELECT * FROM {name} WHERE {where}{order} LIMIT {rows}"


def _limit_reached(run: _Recording) -> MusterError | None:
    if anyio.current_time() >= run.until:
        return DeadlineExceeded(f"the time limit of {run.limits.seconds:g} s was reached while recording")
    if run.writer.bytes >= run.limits.bytes:
        return OverBudget(f"the limit of {run.limits.bytes:,} bytes was reached while recording")
    return None


def _finish(run: _Recording, tables: Sequence[str] | None) -> Manifest:
    ranks = [_entry(run, r) for r in run.roster.ranks]
    if run.writer.rows == 0 and any(r.gaps for r in ranks):
        gap = next(g for r in ranks for g in r.gaps.values())
        raise ShardUnreachable(f"No rank gave a row: {gap.reason}", hint="Are the agents still there? See `muster nodes`.")
    nodes = [_at(n, run.moments) for n in run.roster.nodes]
    notes = list(run.roster.problems)
    if tables is not None:
        notes.append(f"only these tables were recorded: {', '.join(sorted({*tables, PROCESS_RANK.full_name}))}")
    return run.writer.finish(
        job=run.roster.job,
        generation=run.roster.generation,
        recorded_at=run.roster.taken_at,
        source=Source(kind=run.source.kind),
        ranks=ranks,
        nodes=nodes,
        notes=notes,
        previous_generations=run.roster.previous_generations,
        first_seen=run.roster.first_seen,
    )


def _entry(run: _Recording, rank: RankEntry) -> RankEntry:
    oldest, lost = run.history.get(rank.rank, (None, 0))
    return rank.model_copy(
        update={
            "gaps": run.gaps.get(rank.rank, {}),
            "cut": run.cut.get(rank.rank, {}),
            "oldest_step": oldest,
            "rows_lost": lost,
        }
    )


def _at(node: NodeEntry, moments: Mapping[str, int]) -> NodeEntry:
    stamp = moments.get(node.node)
    return node if stamp is None else node.model_copy(update={"as_of": datetime.fromtimestamp(stamp / 1e9, UTC)})


def _history(rows: pa.Table) -> tuple[int | None, int]:
    """The oldest step that an agent still holds of a rank, and the rows that it lost."""
    row = rows.to_pylist()[-1]
    return row.get("oldest_global_step"), row.get("rows_lost") or 0


def _by_rank(rows: pa.Table) -> list[tuple[int, pa.Table]]:
    ranks = sorted({r for r in rows.column("_rank").to_pylist() if r is not None})
    return [(r, rows.filter(pc.equal(rows.column("_rank"), r))) for r in ranks]


def _scope(name: str) -> str:
    known: Table | None = REGISTRY.get(name)
    return known.scope if known is not None else "rank"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
