"""Snapshots of torch's flight recorder as histories: public dumps, and rows made by hand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from diagnosis.collectives import of_tables
from diagnosis.histories import NOW_NS, History
from muster.model import RankStatus
from muster.tables import FLIGHT_RECORD, PG_STATUS, REGISTRY

DUMPS = Path(__file__).parents[3] / "shared" / "data" / "flight_recorder"
needs_dumps = pytest.mark.skipif(not DUMPS.is_dir(), reason="the public dumps are not beside the checkout (../shared/data)")


@cache
def _loaded(name: str) -> dict[str, pa.Table]:
    from muster.bundle.flight_recorder import load

    return load(DUMPS / name)


def dumps(name: str, without: Collection[int] = ()) -> History:
    """A public set of 16 dumps as a history of four nodes; the dumps of some ranks were never found."""
    history = of_tables(_loaded(name))
    for table in (FLIGHT_RECORD.full_name, PG_STATUS.full_name):
        for rank in without:
            history.rows[table].pop(rank, None)
    return history


def snapshots(world: int = 8, nodes: int = 4) -> History:
    """A job of which nothing is recorded yet."""
    history = History(world, nodes, {n: {} for n, t in REGISTRY.items() if not t.optional})
    history.rows[FLIGHT_RECORD.full_name] = {}
    history.rows[PG_STATUS.full_name] = {}
    history.roster = dict.fromkeys(range(world), RankStatus.RUNNING)
    return history


def call(
    history: History,
    rank: int,
    seq: int,
    op: str = "all_reduce",
    *,
    members: Sequence[int] | None = None,
    pg: str = "0",
    sizes: Any = ((1024,),),
    out: Any = None,
    dtype: str = "Float",
    state: str = "scheduled",
    age_s: float = 600.0,
    ago_s: float = 0.0,
    **more: Any,
) -> None:
    """One entry of the newest snapshot of a rank; `ago_s`: of an older one."""
    listed = list(range(history.world)) if members is None else list(members)
    taken = NOW_NS - int(ago_s * 1e9)
    history.rows[FLIGHT_RECORD.full_name].setdefault(rank, []).append(
        {
            "snapshot_id": taken, "rank": rank, "world_size": history.world, "record_id": seq, "pg_id": 0, "pg_name": pg,
            "pg_desc": "default_pg", "pg_ranks": str(listed), "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq,
            "profiling_name": f"nccl:{op}", "state": state, "input_sizes": orjson.dumps(sizes).decode(),
            "output_sizes": orjson.dumps(sizes if out is None else out).decode(), "input_dtypes": f'["{dtype}"]',
            "output_dtypes": f'["{dtype}"]', "time_created_ns": taken - int(age_s * 1e9), "retired": 0, "is_p2p": 0,
            "timeout_ms": 600_000, "top_frame": f"step{rank} (train.py:7)",
        } | more
    )  # fmt: skip


def counted(
    history: History,
    rank: int,
    enqueued: int,
    completed: int,
    *,
    members: Sequence[int] | None = None,
    pg: str = "0",
    ago_s: float = 0.0,
) -> None:
    """The counters of one group in the newest snapshot of a rank; `ago_s`: in an older one."""
    listed = list(range(history.world)) if members is None else list(members)
    history.rows[PG_STATUS.full_name].setdefault(rank, []).append(
        {
            "snapshot_id": NOW_NS - int(ago_s * 1e9), "rank": rank, "world_size": history.world, "pg_id": 0, "pg_name": pg,
            "pg_desc": "default_pg", "ranks": str(listed), "last_enqueued_collective": enqueued,
            "last_started_collective": -1, "last_completed_collective": completed,
        }
    )  # fmt: skip


def stuck(history: History, ranks: Collection[int], seq: int = 100, **more: Any) -> None:
    """These ranks are in one collective that does not end."""
    place = {k: more[k] for k in ("members", "pg") if k in more}
    for rank in ranks:
        call(history, rank, seq, **more)
        counted(history, rank, seq, seq - 1, **place)


def outside(history: History, ranks: Collection[int], seq: int = 99, **place: Any) -> None:
    """These ranks have completed up to `seq` and are in nothing."""
    for rank in ranks:
        counted(history, rank, seq, seq, **place)
