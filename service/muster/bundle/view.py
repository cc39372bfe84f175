"""A manifest as the view that a gateway has of a job, and a view as a manifest's roster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from muster.bundle.manifest import Manifest, NodeEntry, RankEntry
from muster.model import JobView, RankInfo

_SAME = (
    "rank", "generation", "node", "host", "addr", "local_rank", "local_world_size", "node_rank", "role", "role_name",
    "role_rank", "role_world_size", "pid", "status", "started_at", "last_seen", "last_progress_s",
)  # fmt: skip
_KINDS = frozenset({"agent", "probing", "torch", "bundle"})


def rank_infos(manifest: Manifest) -> tuple[RankInfo, ...]:
    """The roster of a bundle."""
    return tuple(RankInfo(**{name: getattr(r, name) for name in _SAME}) for r in manifest.ranks)


def rank_entries(view: JobView) -> list[RankEntry]:
    """The roster of a view, nothing recorded yet."""
    return [RankEntry(**{name: getattr(r, name) for name in _SAME}) for r in view.ranks]


def node_entries(view: JobView, as_of: Mapping[str, datetime] | None = None) -> list[NodeEntry]:
    """The shards of a view, without tables."""
    return [
        NodeEntry(
            node=s.id, host=s.host, addr=s.addr, kind=s.kind.value if s.kind.value in _KINDS else "agent",
            alive=s.alive, node_rank=s.node_rank, clock_offset_s=s.clock_offset_s, last_seen=s.last_seen,
            as_of=(as_of or {}).get(s.id),
        )
        for s in view.shards
    ]  # fmt: skip


def ranks_of(manifest: Manifest, node: str) -> Sequence[RankEntry]:
    """Ranks that a node serves."""
    return [r for r in manifest.ranks if r.served_by == node]
