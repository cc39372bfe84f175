"""Rows of python.comm_collective for synthetic histories, and public traces as histories."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from diagnosis.histories import History
from muster.model import RankStatus
from muster.tables import COMM_COLLECTIVE, NODES, REGISTRY, STEP_TIMING

TRACES = Path(__file__).parents[3] / "shared" / "data" / "straggler"
needs_traces = pytest.mark.skipif(
    not (TRACES / "trace-AR.parquet").is_file(), reason="the public traces are not beside the checkout (../shared/data)"
)


def communicating(
    history: History,
    groups: Sequence[Collection[int]] | None = None,
    *,
    op: str = "all_reduce",
    pg_name: str = "default_pg",
    calls: int = 4,
    thread: int | None = None,
    source: str = "sync",
    p2p: bool = True,
    sized: Callable[[int], int] = lambda rank: 1 << 20,
    **more: Any,
) -> None:
    """Collectives of every step, of all ranks or of disjoint groups: who has done its own work waits for the last of its
    group in `calls` calls, and with `p2p` for the rest of the job in one recv. A group's exchange takes 1 ms."""
    rows = history.rows[COMM_COLLECTIVE.full_name]
    timing = history.rows[STEP_TIMING.full_name]
    for members in groups or [range(history.world)]:
        ranks = sorted(members)
        for place, rank in enumerate(ranks):
            for i, row in enumerate(timing[rank]):
                own = [timing[r][i]["step_duration_sec"] * 1000 - (timing[r][i]["comm_blocked_ms"] or 0) for r in ranks]
                waited = max(own) - own[place] + 1
                rest = (row["comm_blocked_ms"] or 0) - waited
                base = {
                    "rank": rank, "world_size": history.world, "global_step": row["global_step"],
                    "local_step": row["local_step"], "pg_name": pg_name, "group_rank": place, "group_size": len(ranks),
                    "participate_ranks": str(ranks), "thread_id": thread if thread is not None else 1000 + rank,
                    "timing_source": source, "async_op": 0,
                }  # fmt: skip
                start = row["end_ns"] - int((row["comm_blocked_ms"] or 0) * 1e6)
                for n in range(calls):
                    part = waited / calls
                    rows.setdefault(rank, []).append(
                        base
                        | {"op": op, "occurrence": n, "seq": i * calls + n, "bytes": sized(rank), "duration_ms": part}
                        | {"blocked_ms": part, "start_ns": start, "end_ns": start + int(part * 1e6)}
                        | more
                    )
                if p2p and len(ranks) < history.world and rest > 0:
                    pair = {
                        "pg_name": "pipeline",
                        "participate_ranks": None,
                        "group_size": 2,
                        "op": "recv",
                        "occurrence": 0,
                    }
                    rows[rank].append(
                        base | pair | {"duration_ms": rest, "blocked_ms": rest, "start_ns": start, "end_ns": row["end_ns"]}
                    )


def trace(name: str) -> History:
    """A public trace as a history of four nodes."""
    from muster.bundle.traces import load

    return of_tables(load(TRACES / f"trace-{name}.parquet", TRACES / f"meta-{name}.yaml"))


def of_tables(tables: Mapping[str, pa.Table], nodes: int = 4) -> History:
    """Tables without tags, with a column `rank`, as a history."""
    roster = tables[NODES.full_name].to_pylist()
    history = History(len(roster), nodes, {n: {} for n, t in REGISTRY.items() if not t.optional})
    history.roles = {r["rank"]: r["role"] for r in roster}
    history.roster = {r["rank"]: RankStatus(r["status"]) for r in roster}
    for name, rows in tables.items():
        if name != NODES.full_name:
            for row in rows.to_pylist():
                history.rows.setdefault(name, {}).setdefault(row["rank"], []).append(row)
    return history
