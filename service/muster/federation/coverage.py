"""From what became of each shard to what became of each rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from muster.errors import DeadlineExceeded, MusterError, ShardUnreachable
from muster.federation.shards.base import SubAnswer
from muster.model import Coverage, History, JobView, MissingRank, RankInfo, RankState, RankStatus, ShardInfo
from muster.wording import rank_list

_SAID = 100
"""Notes of shards that a coverage repeats."""
_BEST_TO_WORST = (
    RankState.PRUNED,
    RankState.ANSWERED,
    RankState.STALE,
    RankState.NO_TABLE,
    RankState.FAILED,
    RankState.TIMED_OUT,
    RankState.UNREACHABLE,
    RankState.MISSING,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one shard made of one fragment, or why it made nothing of it. `ranks`: those that were asked there.

    `lacking` and `unlike` are columns (`schema.table.column`) that were NULL because the shard does not have them, or has
    them in a type that cannot be taken for the planned one.
    """

    shard: ShardInfo
    ranks: tuple[int, ...]
    state: RankState
    reason: str = ""
    answer: SubAnswer | None = None
    lacking: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()

    @property
    def table(self) -> pa.Table | None:
        """The rows, where it gave some."""
        return self.answer.table if self.answer is not None and self.answer.error is None else None


def outcome_of(shard: ShardInfo, ranks: tuple[int, ...], answer: SubAnswer) -> Outcome:
    """The outcome of one subquery that the shard did answer, if only by an error."""
    if answer.error is None:
        return Outcome(shard, ranks, RankState.ANSWERED, answer=answer)
    state = RankState.NO_TABLE if "table" in answer.error.extra else state_of(answer.error)
    return Outcome(shard, ranks, state, answer.error.detail, answer)


def state_of(error: MusterError) -> RankState:
    """The state of ranks whose shard failed like this."""
    if isinstance(error, DeadlineExceeded):
        return RankState.TIMED_OUT
    return RankState.UNREACHABLE if isinstance(error, ShardUnreachable) else RankState.FAILED


def coverage_of(view: JobView, fragments: Iterable[Iterable[Outcome]]) -> Coverage:
    """Coverage of a statement that rests on these fragments: of each rank its worst state over all of them.

    A statement over the roster alone (no fragments) needs no probe: every rank of it is `pruned`.
    """
    worst: dict[int, tuple[RankState, str]] = {}
    answers: list[SubAnswer] = []
    used = False
    columns: dict[str, set[int]] = {}
    said: set[str] = set()
    for outcomes in fragments:
        used = True
        seen: dict[int, tuple[RankState, str]] = {}
        for outcome in outcomes:
            if outcome.answer is not None and outcome.answer.error is None:
                answers.append(outcome.answer)
                said.update(outcome.answer.notes)
            for text in _notes(outcome):
                columns.setdefault(text, set()).update(outcome.ranks)
            for rank in outcome.ranks:
                seen[rank] = _state_in(outcome, rank)
        for info in view.ranks:
            _worsen(worst, info.rank, seen.get(info.rank, (RankState.MISSING, _why_missing(info))))
    if not used:
        worst = {r.rank: (RankState.PRUNED, "") for r in view.ranks}
    states: dict[RankState, int] = {}
    missing = []
    for info in view.ranks:
        state, reason = worst[info.rank]
        states[state] = states.get(state, 0) + 1
        if state not in (RankState.ANSWERED, RankState.PRUNED):
            missing.append(MissingRank(info.rank, info.host, state, reason, info.last_seen))
    return Coverage(
        world_size=view.world_size,
        states=states,
        missing=tuple(missing),
        history=_history(answers),
        as_of_min=min(_times(answers), default=None),
        as_of_max=max(_times(answers), default=None),
        notes=(
            *view.notes,
            *(f"{text} on {rank_list(ranks)}" for text, ranks in sorted(columns.items())),
            *sorted(said)[:_SAID],
        ),
    )


def _notes(outcome: Outcome) -> list[str]:
    if outcome.table is None:
        return []
    absent = [f"{name} does not exist (NULL there)" for name in outcome.lacking]
    return absent + [f"{name} has another type (NULL there)" for name in outcome.unlike]


def merged(coverages: Iterable[Coverage]) -> Coverage | None:
    """The worst of several coverages of one job, rank by rank; None for none."""
    found = list(coverages)
    if not found:
        return None
    worst: dict[int, MissingRank] = {}
    for coverage in found:
        for missing in coverage.missing:
            old = worst.get(missing.rank)
            if old is None or _order(missing.state) > _order(old.state):
                worst[missing.rank] = missing
    size = found[0].world_size
    states: dict[RankState, int] = {}
    for missing in worst.values():
        states[missing.state] = states.get(missing.state, 0) + 1
    pruned = all(c.states.get(RankState.PRUNED, 0) == c.world_size for c in found)
    rest = size - len(worst)
    if rest:
        states[RankState.PRUNED if pruned else RankState.ANSWERED] = rest
    oldest = [c.history.oldest_step for c in found if c.history.oldest_step is not None]
    return Coverage(
        world_size=size,
        states=states,
        missing=tuple(worst[r] for r in sorted(worst)),
        history=History(max(oldest, default=None), max((c.history.rows_lost for c in found), default=0)),
        as_of_min=min((c.as_of_min for c in found if c.as_of_min), default=None),
        as_of_max=max((c.as_of_max for c in found if c.as_of_max), default=None),
        notes=tuple(dict.fromkeys(n for c in found for n in c.notes)),
    )


def _state_in(outcome: Outcome, rank: int) -> tuple[RankState, str]:
    if outcome.state is not RankState.ANSWERED or outcome.answer is None:
        return outcome.state, outcome.reason
    spoken = outcome.answer.ranks
    if spoken is not None and rank not in spoken:
        return RankState.FAILED, f"{outcome.shard.addr} did not speak for it"
    return RankState.ANSWERED, ""


def _why_missing(rank: RankInfo) -> str:
    if rank.status is RankStatus.MISSING:
        return "never seen in this generation"
    return "no probe serves it"


def _worsen(worst: dict[int, tuple[RankState, str]], rank: int, found: tuple[RankState, str]) -> None:
    old = worst.get(rank)
    if old is None or _order(found[0]) > _order(old[0]):
        worst[rank] = found


def _order(state: RankState) -> int:
    return _BEST_TO_WORST.index(state)


def _history(answers: Iterable[SubAnswer]) -> History:
    """The oldest step that all hold is the newest of each shard's oldest. A shard says it once per subquery."""
    by_ranks: Mapping[object, SubAnswer] = {a.ranks: a for a in answers}
    oldest = [a.oldest_step for a in by_ranks.values() if a.oldest_step is not None]
    return History(max(oldest, default=None), sum(a.rows_lost for a in by_ranks.values()))


def _times(answers: Iterable[SubAnswer]) -> list[datetime]:
    return [a.as_of for a in answers if a.as_of is not None]
