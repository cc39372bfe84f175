"""The roster as a relation: `cluster.nodes`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

from muster.engine import arrow_type
from muster.model import JobView, RankInfo
from muster.tables import NODES


def cluster_nodes(view: JobView) -> pa.Table:
    """One row for each expected rank, in the columns of tables.NODES."""
    nodes = len({r.node for r in view.ranks if r.node is not None}) or None
    rows = [_row(view, r, nodes) for r in view.ranks]
    arrays: list[pa.Array[Any]] = [pa.array([r[c.name] for r in rows], arrow_type(c.type)) for c in NODES.columns]
    return pa.table(arrays, names=[c.name for c in NODES.columns])


def _row(view: JobView, rank: RankInfo, nodes: int | None) -> dict[str, Any]:
    return {
        "host": rank.host,
        "addr": rank.addr,
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "world_size": view.world_size,
        "group_rank": rank.node_rank,
        "group_world_size": nodes,
        "role_name": rank.role_name,
        "role_rank": rank.role_rank,
        "role_world_size": rank.role_world_size,
        "role": rank.role,
        "status": rank.status.value,
        "timestamp": _micros(view.taken_at),
        "generation": rank.generation,
        "pid": rank.pid,
        "last_seen": _micros(rank.last_seen),
        "last_progress_s": rank.last_progress_s,
    }


def _micros(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1_000_000)
