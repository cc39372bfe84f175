"""What registrations say of a job, put together: nodes, generations, ranks. Pure; the clock comes in as an argument."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from muster.model import ColumnType, JobView, RankInfo, RankStatus, ShardInfo, ShardKind
from muster.protocol import NodeRank, Registration

_KIND_ORDER = {kind: i for i, kind in enumerate(ShardKind)}
_MAX_NOTES = 8
_LONG_AGO = timedelta(days=3650)
_BEGINNING = datetime.min.replace(tzinfo=UTC)


Tables = Mapping[str, tuple[ColumnType, ...]]


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """The newest registration of a node, and when it came (the gateway's clock)."""

    node: str
    registration: Registration
    seen_at: datetime
    first_seen: datetime
    restored_at: datetime | None = None  # when a restarted gateway read it from its store
    tables: Tables | None = None

    def expires_at(self, expires_s: float) -> datetime:
        """Until when it counts as alive if nothing more is heard. A node that was read back after a restart has one
        period to say something."""
        heard = max(self.seen_at, self.restored_at) if self.restored_at is not None else self.seen_at
        return heard + timedelta(seconds=expires_s)

    @property
    def clock_offset_s(self) -> float | None:
        """Clock of the node minus clock of the gateway, transit included."""
        said = self.registration.now
        return None if said is None else (said - self.seen_at).total_seconds()


@dataclass(slots=True)
class JobEntry:
    """A job: its nodes, and every rank ever seen of each of its generations."""

    job: str
    first_seen: datetime
    nodes: dict[str, NodeEntry] = field(default_factory=dict)
    ranks: dict[str, dict[int, RankInfo]] = field(default_factory=dict)  # by generation
    world_sizes: dict[str, int] = field(default_factory=dict)  # by generation
    started: dict[str, datetime] = field(default_factory=dict)  # newest start of a rank, by generation

    @property
    def last_seen(self) -> datetime:
        return max((n.seen_at for n in self.nodes.values()), default=self.first_seen)


def merge(
    entry: JobEntry,
    node: str,
    said: Registration,
    now: datetime,
    *,
    expires_s: float = math.inf,
    restored_at: datetime | None = None,
) -> bool:
    """Take a registration in. Returns whether it says more than that the node is still there.

    `restored_at`: it was said at `now`, before the gateway was restarted, and read back then.
    """
    old = entry.nodes.get(node)
    same_tables = old is not None and old.registration.tables == said.tables
    tables = old.tables if old is not None and same_tables else _tables(said)
    entry.nodes[node] = NodeEntry(node, said, now, old.first_seen if old else now, restored_at, tables)
    changed = old is None or _essence(old.registration) != _essence(said)
    for rank in said.ranks:
        generation = rank.generation or ""
        known = entry.ranks.setdefault(generation, {})
        claimed = known.get(rank.rank)
        holder = entry.nodes.get(claimed.node) if claimed is not None and claimed.node is not None else None
        held = claimed is not None and claimed.node != node and not _overdue(holder, now, expires_s)
        if claimed is not None and held and not _takes_over(entry, claimed, said, rank, now):
            continue
        known[rank.rank] = _rank_info(rank, node, said, now)
        _leave_provisional(entry, known[rank.rank])
        if claimed is None or (claimed.pid, claimed.started_at) != (rank.pid, rank.started_at):
            # once per process: a start in the future must not grow with every heartbeat
            start = _plausible(rank.started_at or now, now)
            entry.started[generation] = max(entry.started.get(generation, start), start)
        if said.world_size is not None:
            size = max(entry.world_sizes.get(generation, 0), said.world_size)
            entry.world_sizes[generation] = size
    if changed:
        _let_go(entry, node, said)
    return changed


def forget_node(entry: JobEntry, node: str) -> bool:
    """A node deregisters: nothing can be asked there any more. Its ranks stay in the roster."""
    return entry.nodes.pop(node, None) is not None


def view(entry: JobEntry, now: datetime, expires_s: float) -> JobView:
    """The newest generation of a job: every expected rank, and the shards that serve them.

    A shard whose heartbeat is overdue is still asked, since it may just be cut off from here; its ranks are `stale`.
    """
    generations = newest_first(entry)
    if not generations:
        return JobView(entry.job, None, _declared_size(entry), _all_missing(_declared_size(entry)), (), now)
    generation = generations[0]
    known = entry.ranks[generation]
    overdue_nodes = {name for name, node in entry.nodes.items() if _overdue(node, now, expires_s)}
    owned: dict[str, list[int]] = {}
    size = max(entry.world_sizes.get(generation, 0), max(known, default=-1) + 1)
    ranks = []
    for number in range(size):
        info = known.get(number)
        if info is None:
            ranks.append(RankInfo(number, generation))
            continue
        if info.node in entry.nodes:
            owned.setdefault(info.node, []).append(number)
        overdue = info.node not in entry.nodes or info.node in overdue_nodes
        ranks.append(replace(info, status=RankStatus.STALE) if overdue and info.status is RankStatus.RUNNING else info)
    shards = tuple(_shard(entry.nodes[name], owned[name], name not in overdue_nodes) for name in sorted(owned))
    notes = (*_restart_notes(entry, owned, overdue_nodes), *_claim_notes(entry, generation, known, overdue_nodes))
    return JobView(entry.job, generation, size, tuple(ranks), shards, now, tuple(generations[1:]), notes)


def holds_until(entry: JobEntry, now: datetime, expires_s: float) -> datetime | None:
    """Until when a view of `now` stays as it is, if nobody registers or leaves: the next node falls overdue after that.
    None: for ever."""
    return min((at for n in entry.nodes.values() if (at := n.expires_at(expires_s)) >= now), default=None)


def newest_first(entry: JobEntry) -> list[str]:
    """Generations, the one whose ranks started last first."""
    return sorted(entry.ranks, key=lambda g: entry.started.get(g, _BEGINNING), reverse=True)


def prune(entry: JobEntry, keep_generations: int) -> None:
    """Forget the oldest generations, so that a job that restarts for ever stays small."""
    for generation in newest_first(entry)[keep_generations:]:
        del entry.ranks[generation]
        entry.world_sizes.pop(generation, None)
        entry.started.pop(generation, None)


def _leave_provisional(entry: JobEntry, info: RankInfo) -> None:
    """A process changes its generation once, when the process group gives the final id: it is in one generation only."""
    for generation, known in list(entry.ranks.items()):
        old = known.get(info.rank)
        if generation == info.generation or old is None:
            continue
        if (old.node, old.pid, old.started_at) == (info.node, info.pid, info.started_at):
            del known[info.rank]
            if not known:
                del entry.ranks[generation]
                entry.world_sizes.pop(generation, None)
                entry.started.pop(generation, None)


def _rank_info(rank: NodeRank, node: str, said: Registration, now: datetime) -> RankInfo:
    return RankInfo(
        rank=rank.rank,
        generation=rank.generation or "",
        node=node,
        host=said.host,
        addr=said.addr,
        local_rank=rank.local_rank,
        local_world_size=rank.local_world_size,
        node_rank=rank.node_rank if rank.node_rank is not None else said.node_rank,
        role=rank.role,
        role_name=rank.role_name,
        role_rank=rank.role_rank,
        role_world_size=rank.role_world_size,
        pid=rank.pid,
        status=RankStatus(rank.status),
        started_at=rank.started_at,
        last_seen=_plausible(rank.last_seen or now, now),
        last_progress_s=rank.last_progress_s,
    )


def _let_go(entry: JobEntry, node: str, said: Registration) -> None:
    """Ranks that their node does not list any more: nobody serves them, so they are stale until somebody does."""
    listed = {(r.generation or "", r.rank) for r in said.ranks}
    for generation, known in entry.ranks.items():
        for rank, info in known.items():
            if info.node == node and (generation, rank) not in listed:
                known[rank] = replace(info, node=None)


def _plausible(moment: datetime, now: datetime) -> datetime:
    """A time that a node said, kept within what can be: not after now, and not before there were such jobs."""
    return min(max(moment, now - _LONG_AGO), now)


def _takes_over(entry: JobEntry, claimed: RankInfo, said: Registration, rank: NodeRank, now: datetime) -> bool:
    """Two nodes claim a rank of one generation: the better kind of shard has it, then the process that started last."""
    holder = entry.nodes.get(claimed.node) if claimed.node is not None else None
    if holder is None:
        return True
    mine, theirs = _KIND_ORDER[ShardKind(said.kind)], _KIND_ORDER[ShardKind(holder.registration.kind)]
    if mine != theirs:
        return mine < theirs
    mine_start, their_start = (min(at or _BEGINNING, now) for at in (rank.started_at, claimed.started_at))
    return mine_start > their_start


def _tables(said: Registration) -> Tables | None:
    if said.tables is None:
        return None
    return {f"{t.schema_}.{t.name}": tuple(ColumnType(c.name, c.type) for c in t.columns) for t in said.tables}


def _restart_notes(entry: JobEntry, owned: Mapping[str, list[int]], overdue: set[str]) -> list[str]:
    waiting = [n for n in sorted(owned) if entry.nodes[n].restored_at is not None and n not in overdue]
    if not waiting:
        return []
    number = sum(len(owned[n]) for n in waiting)
    return [
        f"the gateway has restarted: {number} ranks are as last known, their agents ({_some(waiting)})"
        " have not been heard since"
    ]


def _claim_notes(entry: JobEntry, generation: str, known: Mapping[int, RankInfo], overdue: set[str]) -> list[str]:
    """Of each pair of nodes that both claim ranks of a generation, which one is asked."""
    pairs: dict[tuple[str, str], list[int]] = {}
    for name, node in sorted(entry.nodes.items()):
        for rank in node.registration.ranks if name not in overdue else ():
            info = known.get(rank.rank)
            if info is None or info.node is None or info.node == name or (rank.generation or "") != generation:
                continue
            pairs.setdefault((info.node, name), []).append(rank.rank)
    notes = [
        f"{owner} and {other} both claim {'rank' if len(ranks) == 1 else 'ranks'} {_some(sorted(ranks))}: {owner} is asked"
        for (owner, other), ranks in sorted(pairs.items())
    ]
    rest = len(notes) - _MAX_NOTES
    return [*notes[:_MAX_NOTES], *([f"{rest} more pairs of nodes claim the same ranks"] if rest > 0 else [])]


def _some(things: Iterable[object]) -> str:
    names = [str(t) for t in things]
    more = len(names) - _MAX_NOTES
    return ", ".join(names[:_MAX_NOTES]) + (f" and {more} more" if more > 0 else "")


def _shard(node: NodeEntry, ranks: Iterable[int], alive: bool) -> ShardInfo:
    said = node.registration
    return ShardInfo(
        id=node.node,
        kind=ShardKind(said.kind),
        addr=said.addr,
        host=said.host,
        ranks=tuple(ranks),
        node_rank=said.node_rank,
        tables=node.tables,
        engine=said.engine.label if said.engine else None,
        profile=dict(said.engine.profile) if said.engine else None,
        alive=alive,
        last_seen=node.seen_at,
        clock_offset_s=node.clock_offset_s,
    )


def _overdue(node: NodeEntry | None, now: datetime, expires_s: float) -> bool:
    """Whether a heartbeat is overdue."""
    return node is None or (expires_s < math.inf and now > node.expires_at(expires_s))


def _declared_size(entry: JobEntry) -> int:
    return max((n.registration.world_size or 0 for n in entry.nodes.values()), default=0)


def _all_missing(size: int) -> tuple[RankInfo, ...]:
    return tuple(RankInfo(r) for r in range(size))


def _essence(said: Registration) -> object:
    """What of a registration is worth keeping over a restart: all but the clocks."""
    ranks = [r.model_copy(update={"last_seen": None, "last_progress_s": None}) for r in said.ranks]
    return said.model_copy(update={"now": None, "ranks": ranks})
