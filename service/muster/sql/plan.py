"""The shapes that planning gives and federation executes. Plain data; see `planner.Planner` for who makes them.

A plan runs in waves. The fragments of a wave are sent to the shards, all in one request for each shard. What the shards
answer is unioned per fragment and registered in the gateway's DuckDB as the relation `Fragment.id`, with its columns cast
to their bound types. Then the scalars of the wave are computed; their values become typed literals in the fragments of
later waves. When the last wave is in, each merge statement gives the answer to one statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from muster.model import ColumnType

ParamValue = int | float | bool | str | None


class Exactness(StrEnum):
    """What "equal to one DuckDB" means for an output column, from best to worst."""

    EXACT = "exact"
    FLOAT = "float"  # rounding may depend on the order of the rows
    APPROX = "approx"  # sketches
    ARBITRARY = "arbitrary"  # SQL leaves it open: ties, first(), order without a key


class Route(StrEnum):
    """Where the work of a fragment is done."""

    LOCAL = "local"  # the whole scope on the shards, the gateway concatenates
    PARTIAL = "partial"  # partial aggregates on the shards, the gateway finalises
    TOPK = "topk"  # ORDER BY and LIMIT on the shards, and again at the gateway
    GATHER = "gather"  # filtered and projected rows travel


@dataclass(frozen=True, slots=True)
class Statement:
    """One SELECT over the job, in DuckDB's dialect, with `$name` parameters."""

    id: str
    sql: str
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    use_global: bool = True  # False: only the coordinator, rank 0


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of an answer, with the name and type that one DuckDB would give it."""

    name: str
    type: str
    exactness: Exactness = Exactness.EXACT


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value computed between waves: `sql` gives exactly one row of one column over fragment relations.

    The column is of `type`, or the text of a value of `type` (times, whose Python values would lose digits). Scalars of
    one wave do not depend on each other; `scalars` are those of earlier waves that `sql` holds as `$id`.
    """

    id: str
    sql: str
    type: str
    fragments: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()  # those of tables.GATEWAY_TABLES that it reads


@dataclass(frozen=True, slots=True)
class Pin:
    """What a filter says of a tag column: one of `values`, or within `low` and `high` (both inclusive, None: open)."""

    tag: str
    values: frozenset[int | str] | None = None
    low: int | None = None
    high: int | None = None

    def admits(self, value: int | str | None) -> bool:
        """Whether rows of a rank with this tag can pass. A tag that is not known might be anything."""
        if value is None:
            return True
        if self.values is not None:
            return value in self.values
        if not isinstance(value, int):
            return True
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.values is not None:
            return f"{self.tag} in {', '.join(map(str, sorted(self.values, key=str)))}"
        return f"{self.tag} from {self.low if self.low is not None else 0}" + (
            f" to {self.high}" if self.high is not None else ""
        )


@dataclass(frozen=True, slots=True)
class Fragment:
    """SQL for the shards. Equal fragments have equal ids and are fetched once.

    `sql` names tables as `schema.table` with the tags as ordinary columns, and holds `$id` for each of `scalars`.
    `tables` are those that it reads. `pins` limit it to the ranks whose tags all of them admit.
    """

    id: str
    tables: tuple[str, ...]
    sql: str
    columns: tuple[ColumnType, ...]
    route: Route
    scalars: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    pushed_filter: str | None = None
    pushed_columns: tuple[str, ...] = ()
    reason: str | None = None  # why no better route was taken

    @property
    def ranks(self) -> frozenset[int] | None:
        """The ranks that its pins leave, where they name some; None where they do not."""
        named = [p.values for p in self.pins if p.tag == "_rank" and p.values is not None]
        return frozenset(r for r in frozenset.intersection(*named) if isinstance(r, int)) if named else None


@dataclass(frozen=True, slots=True)
class Wave:
    fragments: tuple[Fragment, ...]
    scalars: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class Merge:
    """SQL for the gateway over fragment relations and `NODES_RELATION`; holds `$id` for each of `scalars`.

    Its result has `columns`, by position: names are those that one DuckDB would give. `relations` are those of
    `tables.GATEWAY_TABLES` that it reads.
    """

    statement: str
    sql: str
    columns: tuple[OutputColumn, ...]
    fragments: tuple[str, ...]
    scalars: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """How one or several statements are answered together."""

    waves: tuple[Wave, ...]
    merges: tuple[Merge, ...]

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        return tuple(f for w in self.waves for f in w.fragments)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Tables that a job offers: `schema.name` to its columns without the tags.

    `owned` are tables beside those of the registry whose every row has its rank in `_rank`. `states` says whether all
    shards run the gateway's engine, so that aggregate states may travel; `pushdown`, whether they run it with the gateway's
    settings, so that anything but rows may; `why_not` says what is in the way of either.
    """

    tables: Mapping[str, tuple[ColumnType, ...]]
    owned: frozenset[str] = frozenset()
    states: bool = True
    pushdown: bool = True
    why_not: str | None = None
