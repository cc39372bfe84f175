"""What every kind of shard can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from muster.errors import MusterError
from muster.model import ShardInfo
from muster.protocol import RankRef, SubQuery


@dataclass(frozen=True, slots=True)
class SubAnswer:
    """The answer of one shard to one subquery: a table, or the error that stopped it.

    `ranks`: those that it speaks for, None where the shard did not say. `as_of`: when the rows were looked at.
    `oldest_step`: the oldest step that all of its ranks still hold. `notes`: what the shard itself left out of the tables
    read. `nbytes`: bytes that travelled.
    """

    id: str
    table: pa.Table | None = None
    error: MusterError | None = None
    ranks: tuple[int, ...] | None = None
    as_of: datetime | None = None
    oldest_step: int | None = None
    rows_lost: int = 0
    notes: tuple[str, ...] = ()
    elapsed_ms: float | None = None
    nbytes: int = 0


class Shard(Protocol):
    """Somewhere subqueries can be sent. A shard answers all subqueries of a wave in one call."""

    @property
    def info(self) -> ShardInfo: ...

    async def query(
        self,
        subqueries: Sequence[SubQuery],
        ranks: Sequence[RankRef],
        schemas: Mapping[str, pa.Schema],
        deadline_s: float,
    ) -> Sequence[SubAnswer]:
        """Answers in the order of the subqueries, each with the schema that `schemas` says for its id.

        `deadline_s`: seconds that are left. Raises ShardUnreachable, DeadlineExceeded, ShardAnswerInvalid or ShardFailed
        when the shard as a whole gave nothing that can be used.
        """
        ...


class ShardFactory(Protocol):
    """Makes the shard for an entry of the roster."""

    def __call__(self, info: ShardInfo) -> Shard: ...
