"""The registry: all jobs that agents have told of."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from muster.errors import JobNotFound, NodeNotFound, TooLarge
from muster.model import JOB_ID, JobView, RankStatus
from muster.protocol import Registration, RegistrationAnswer
from muster.registry import roster
from muster.registry.addresses import AllowList
from muster.registry.roster import JobEntry, NodeEntry
from muster.registry.store import Store

KEEP_GENERATIONS = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on what comes from outside."""

    jobs: int = 1_000
    nodes_per_job: int = 20_000
    ranks_per_job: int = 1 << 17


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One line on a job. `statuses`: ranks by status."""

    job: str
    generation: str | None
    world_size: int
    statuses: dict[RankStatus, int]
    nodes: int
    first_seen: datetime
    last_seen: datetime


class Registry:
    """Thread-safe; the clock comes in with every call. Keeps every rank that it has seen of the newest
    generations. Only `register` and `deregister` write to the store."""

    def __init__(
        self,
        store: Store,
        *,
        heartbeat_s: float = 10.0,
        expires_s: float = 30.0,
        forget_s: float = 7 * 86_400.0,
        addresses: AllowList | None = None,
        limits: Limits | None = None,
        now: datetime | None = None,
    ) -> None:
        """`now` is when the gateway starts: nodes read from the store have one heartbeat period from then on."""
        self._store = store
        self._heartbeat_s = heartbeat_s
        self._expires_s = expires_s
        self._forget = timedelta(seconds=forget_s)
        self._addresses = addresses or AllowList()
        self._limits = limits or Limits()
        self._lock = threading.RLock()  # never held while the store writes, so that a view never waits for a disk
        self._writing = threading.Lock()
        self._gone: list[str] = []  # forgotten, and still in the store
        self._jobs: dict[str, JobEntry] = {}
        self._views: dict[str, tuple[JobView, datetime | None]] = {}  # and until when they hold
        self._stored: dict[tuple[str, str], datetime] = {}  # when each node was last written
        self._load(now or datetime.now(UTC))

    def register(self, job: str, node: str, said: Registration, now: datetime) -> RegistrationAnswer:
        """Registration and heartbeat in one. Raises ParameterError, Forbidden (address), TooLarge (a cap)."""
        addr = self._addresses.check(said.addr)
        if said.addr != addr:
            said = said.model_copy(update={"addr": addr})
        with self._writing:
            with self._lock:
                self._check_caps(job, node, said)
                entry = self._jobs.setdefault(job, JobEntry(job, now))
                self._views.pop(job, None)
                changed = roster.merge(entry, node, said, now, expires_s=self._expires_s)
                roster.prune(entry, KEEP_GENERATIONS)
                written = self._stored.get((job, node))
                due = changed or written is None or now - written > self._forget / 100
                if due:
                    self._stored[job, node] = now
            self._drop_gone()
            if due:
                self._store.put_node(job, node, now, said)
        return RegistrationAnswer(heartbeat_s=self._heartbeat_s, expires_s=self._expires_s)

    def deregister(self, job: str, node: str) -> None:
        """A node leaves: nothing is asked there any more; its ranks stay in the roster.

        Raises JobNotFound, NodeNotFound.
        """
        with self._writing:
            with self._lock:
                self._views.pop(job, None)
                if not roster.forget_node(self._entry(job), node):
                    raise NodeNotFound(
                        f"Job {job} has no node {node}.", hint="See /jobs/{job}/nodes for those that it has."
                    )
            self._store.drop_node(job, node)

    def view(self, job: str, now: datetime) -> JobView:
        """The newest generation of a job as of now. Raises JobNotFound."""
        with self._lock:
            return self._view(self._entry(job), now)

    def nodes(self, job: str) -> list[NodeEntry]:
        """Registered nodes of a job, by name. Raises JobNotFound."""
        with self._lock:
            return sorted(self._entry(job).nodes.values(), key=lambda n: n.node)

    def jobs(self, now: datetime) -> list[JobSummary]:
        """All jobs, the one last heard of first."""
        with self._lock:
            self._forget_old(now)
            found = [self._summary(e, now) for e in self._jobs.values()]
        return sorted(found, key=lambda s: s.last_seen, reverse=True)

    def _summary(self, entry: JobEntry, now: datetime) -> JobSummary:
        seen = self._view(entry, now)
        statuses: dict[RankStatus, int] = {}
        for rank in seen.ranks:
            statuses[rank.status] = statuses.get(rank.status, 0) + 1
        return JobSummary(
            entry.job, seen.generation, seen.world_size, statuses, len(entry.nodes), entry.first_seen, entry.last_seen
        )

    def _view(self, entry: JobEntry, now: datetime) -> JobView:
        """As it was made last, while nothing can have changed."""
        kept, until = self._views.get(entry.job, (None, None))
        if kept is None or now < kept.taken_at or (until is not None and now > until):
            kept = roster.view(entry, now, self._expires_s)
            self._views[entry.job] = (kept, roster.holds_until(entry, now, self._expires_s))
        return kept if kept.taken_at == now else replace(kept, taken_at=now)

    def _entry(self, job: str) -> JobEntry:
        entry = self._jobs.get(job)
        if entry is None:
            known = ", ".join(sorted(self._jobs)[:10]) or "none"
            raise JobNotFound(
                f"There is no job {job[:128]!r}." if JOB_ID.fullmatch(job) else "That is not the id of a job.",
                hint=f"Known jobs: {known}. A job is known once its first agent has registered.",
            )
        return entry

    def _check_caps(self, job: str, node: str, said: Registration) -> None:
        entry = self._jobs.get(job)
        if entry is None and len(self._jobs) >= self._limits.jobs:
            raise TooLarge(f"The gateway has {len(self._jobs)} jobs; more are not taken.", hint="Raise max_jobs.")
        nodes = entry.nodes if entry else {}
        if node not in nodes and len(nodes) >= self._limits.nodes_per_job:
            raise TooLarge(f"Job {job} has {len(nodes)} nodes; more are not taken.", hint="Raise max_nodes_per_job.")
        highest = max([r.rank for r in said.ranks], default=0)
        if max(said.world_size or 0, highest + 1) > self._limits.ranks_per_job:
            raise TooLarge(f"More than {self._limits.ranks_per_job} ranks are not taken.", hint="Raise max_ranks_per_job.")

    def _forget_old(self, now: datetime) -> None:
        for job, entry in list(self._jobs.items()):
            if now - entry.last_seen > self._forget:
                del self._jobs[job]
                self._views.pop(job, None)
                self._stored = {key: at for key, at in self._stored.items() if key[0] != job}
                self._gone.append(job)

    def _drop_gone(self) -> None:
        with self._lock:
            gone, self._gone = self._gone, []
        for job in gone:
            self._store.drop_job(job)

    def _load(self, now: datetime) -> None:
        for kept in sorted(self._store.nodes(), key=lambda n: n.seen_at):
            entry = self._jobs.setdefault(kept.job, JobEntry(kept.job, kept.seen_at))
            roster.merge(entry, kept.node, kept.registration, kept.seen_at, restored_at=now)
            self._stored[kept.job, kept.node] = kept.seen_at
