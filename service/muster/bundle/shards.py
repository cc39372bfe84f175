"""The shards of a bundle: one per node, in this process, over the recorded rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import duckdb
import pyarrow as pa
from sqlglot import exp

from muster.bundle.manifest import FileEntry, Gap, Manifest, NodeEntry, RankEntry
from muster.bundle.parquet import SMALLER, Limits, read_table
from muster.bundle.view import rank_infos, ranks_of
from muster.engine import PROFILE, arrow_schema, engine_name, open_engine
from muster.errors import BadRequest, DeadlineExceeded, MusterError, ShardFailed, ShardUnreachable, TooLarge
from muster.federation.shards.base import Shard, SubAnswer
from muster.federation.shards.local import LocalShard
from muster.model import ColumnType, JobView, ShardInfo, ShardKind
from muster.protocol import RankRef, SubQuery
from muster.sql.dialect import write
from muster.sql.guard import SHARD, guard
from muster.tables import STEP_TIMING

ALL = "*"
MEMORY_LIMIT = "8GB"
_ERRORS: Mapping[str, type[ShardFailed] | type[DeadlineExceeded]] = {
    "failed": ShardFailed,
    "timed_out": DeadlineExceeded,
    "unreachable": ShardUnreachable,
}


class BundleShards:
    """Makes the shards of a bundle. Rows are read when they are first wanted (`load`), all nodes' at once."""

    def __init__(self, directory: Path, manifest: Manifest, limits: Limits | None = None) -> None:
        self._directory = directory
        self._manifest = manifest
        self._limits = limits or Limits()
        self._groups = {g.info.id: g for g in _groups(manifest)}
        self._shards: dict[str, Shard] = {}
        self._held = 0
        self._schemas: dict[tuple[ColumnType, ...], pa.Schema] = {}

    def view(self) -> JobView:
        """The job as a gateway would have seen it when the bundle was recorded."""
        manifest = self._manifest
        return JobView(
            manifest.job,
            manifest.generation,
            manifest.world_size,
            rank_infos(manifest),
            tuple(g.info for g in self._groups.values()),
            manifest.recorded_at,
            tuple(manifest.previous_generations),
        )

    def load(self) -> None:
        """Read all rows. Raises BadRequest or TooLarge naming the file and what to do."""
        for id, group in self._groups.items():
            if id not in self._shards:
                self._shards[id] = self._shard(group)

    def __call__(self, info: ShardInfo) -> Shard:
        """The shard of an entry of the view; `load` comes first."""
        return self._shards[info.id]

    def _shard(self, group: _Group) -> Shard:
        if group.gaps.get(ALL) is not None:
            return _Gone(group)
        rows = self._rows(group)
        try:
            local = LocalShard(group.info.id, group.node.host, group.info.ranks, rows, memory_limit=MEMORY_LIMIT)
        except duckdb.OutOfMemoryException as error:
            raise TooLarge(f"The rows of {group.info.id} do not fit: {error}", hint=SMALLER) from None
        return BundleShard(group, local, _oldest_steps(rows), group.node.as_of or self._manifest.recorded_at)

    def _rows(self, group: _Group) -> dict[str, pa.Table]:
        """The rows of a group of ranks of a node, by table, in the columns that the node has."""
        found: dict[str, pa.Table] = {}
        by_name = {t.name: t for t in self._manifest.tables}
        for name, columns in (group.info.tables or {}).items():
            schema = self._schema(columns)
            parts = [self._file(f.path, f.rows, f.bytes, schema) for f in by_name[name].files if group.holds(f)]
            found[name] = pa.concat_tables([schema.empty_table(), *parts])
        return found

    def _schema(self, columns: tuple[ColumnType, ...]) -> pa.Schema:
        """The Arrow schema of columns; nodes mostly have the same."""
        if columns not in self._schemas:
            with open_engine(threads=1) as engine:
                self._schemas[columns] = arrow_schema(engine, {c.name: c.type for c in columns})
        return self._schemas[columns]

    def _file(self, inner: str, rows: int, size: int, schema: pa.Schema) -> pa.Table:
        path = self._directory / inner
        if not path.resolve().is_relative_to(self._directory.resolve()):
            raise BadRequest(f"{path} is a link to outside of the bundle.", hint="Copy the file itself into the bundle.")
        table = read_table(path, self._limits, bytes_written=size)
        self._held += table.nbytes
        if self._held > self._limits.total_bytes:
            raise TooLarge(f"The bundle takes more than {self._limits.total_bytes:,} bytes in memory.", hint=SMALLER)
        if table.num_rows != rows:
            raise BadRequest(f"{path} has {table.num_rows:,} rows, {rows:,} were written.", hint=_AGAIN)
        return _as(table, schema, path)


class BundleShard:
    """A `LocalShard` that answers as of the recording, for the asked ranks only, and says what was not recorded."""

    def __init__(self, group: _Group, local: LocalShard, oldest: Mapping[int, int], as_of: datetime) -> None:
        self._group = group
        self._local = local
        self._oldest = oldest
        self._as_of = as_of

    @property
    def info(self) -> ShardInfo:
        return self._group.info

    async def query(
        self,
        subqueries: Sequence[SubQuery],
        ranks: Sequence[RankRef],
        schemas: Mapping[str, pa.Schema],
        deadline_s: float,
    ) -> Sequence[SubAnswer]:
        wanted = [r.rank for r in ranks]
        answers: dict[str, SubAnswer] = {}
        runnable = []
        for query in subqueries:
            try:
                runnable.append(query.model_copy(update={"sql": self._runnable(query.sql, wanted)}))
            except MusterError as error:
                answers[query.id] = SubAnswer(query.id, error=error, ranks=tuple(wanted), as_of=self._as_of)
        for answer in await self._local.query(runnable, ranks, schemas, deadline_s):
            answers[answer.id] = replace(
                answer,
                as_of=self._as_of,
                oldest_step=max((self._oldest[r] for r in wanted if r in self._oldest), default=None),
                rows_lost=sum(r.rows_lost for r in self._group.ranks if r.rank in wanted),
            )
        return [answers[q.id] for q in subqueries]

    def _runnable(self, sql: str, wanted: Sequence[int]) -> str:
        """The statement over the rows of the wanted ranks only. Raises the error of a table that was not recorded."""
        whole = set(wanted) >= set(self.info.ranks)
        if whole and not self._group.gaps:
            return sql  # the shard below guards it
        guarded = guard(sql, tables=(self.info.tables or {}).keys(), limits=SHARD)
        for table in sorted(guarded.tables):
            if table in self._group.gaps:
                raise _error(self._group.gaps[table], table)
        if whole:
            return guarded.sql
        tree = guarded.tree.copy()
        for found in list(tree.find_all(exp.Table)):
            if found.db:
                found.replace(_only(found, wanted))
        return write(tree)


class _Gone:
    """Ranks of which nothing was recorded: they fail now as they did then."""

    def __init__(self, group: _Group) -> None:
        self._group = group

    @property
    def info(self) -> ShardInfo:
        return self._group.info

    async def query(
        self,
        subqueries: Sequence[SubQuery],
        ranks: Sequence[RankRef],
        schemas: Mapping[str, pa.Schema],
        deadline_s: float,
    ) -> Sequence[SubAnswer]:
        raise _error(self._group.gaps[ALL], None)


class _Group:
    """Ranks of a node of which the same is in the bundle. The `main` group of a node has the rows of the node itself."""

    def __init__(self, node: NodeEntry, ranks: Sequence[RankEntry], id: str, manifest: Manifest, main: bool) -> None:
        self.node = node
        self.ranks = ranks
        self.gaps: Mapping[str, Gap] = ranks[0].gaps
        self._main = main
        schemas = {t.name: t.schemas for t in manifest.tables}
        tables = {
            name: tuple(ColumnType(c.name, c.type) for c in schemas[name][place])
            for name, place in sorted(node.tables.items())
        }
        self.info = ShardInfo(
            id=id,
            kind=ShardKind.BUNDLE,
            addr=node.addr,
            host=node.host,
            ranks=tuple(r.rank for r in ranks),
            node_rank=node.node_rank,
            tables=tables or None,
            engine=engine_name(),
            profile=dict(PROFILE),
            alive=node.alive,
            last_seen=node.last_seen,
            clock_offset_s=node.clock_offset_s,
        )

    def holds(self, file: FileEntry) -> bool:
        """Whether the rows of a file are of these ranks."""
        mine = self._main if file.rank is None else file.rank in self.info.ranks
        return file.node == self.node.node and mine


def _groups(manifest: Manifest) -> list[_Group]:
    found = []
    for node in manifest.nodes:
        by_gaps: dict[tuple[tuple[str, str, str], ...], list[RankEntry]] = {}
        for rank in ranks_of(manifest, node.node):
            key = tuple(sorted((t, g.state, g.reason) for t, g in rank.gaps.items()))
            by_gaps.setdefault(key, []).append(rank)
        for number, (_, ranks) in enumerate(sorted(by_gaps.items())):
            id = node.node if number == 0 else f"{node.node}/{number}"
            found.append(_Group(node, ranks, id, manifest, main=number == 0))
    return found


def _only(table: exp.Table, ranks: Sequence[int]) -> exp.Expr:
    """The rows of some ranks of a table, and those of its node, under the name by which the statement calls it."""
    alias = table.alias or table.name
    bare = exp.Table(this=table.this.copy(), db=table.args["db"].copy())
    tag = exp.column("_rank", quoted=True)
    mine = exp.or_(tag.isin(*ranks), tag.copy().is_(exp.null())) if ranks else tag.is_(exp.null())
    return exp.select("*").from_(bare).where(mine).subquery(exp.to_identifier(alias, quoted=True))


def _as(table: pa.Table, schema: pa.Schema, path: Path) -> pa.Table:
    """In the columns that the manifest says; what the file does not have is NULL."""
    unknown = sorted(set(table.column_names) - set(schema.names))
    if unknown:
        raise BadRequest(f"{path} has columns that job.json does not name: {', '.join(unknown[:5])}.", hint=_AGAIN)
    try:
        arrays = [
            table.column(f.name).cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type)
            for f in schema
        ]
    except pa.ArrowException as error:
        raise BadRequest(f"{path} does not fit the columns in job.json: {error}", hint=_AGAIN) from None
    return pa.table(arrays, schema=schema)


def _oldest_steps(rows: Mapping[str, pa.Table]) -> dict[int, int]:
    """The oldest step that each rank still holds, from the rows themselves."""
    steps = rows.get(STEP_TIMING.full_name)
    if steps is None or not {"_rank", "global_step"} <= set(steps.column_names):
        return {}
    least = steps.group_by("_rank").aggregate([("global_step", "min")]).to_pydict()
    pairs = zip(least["_rank"], least["global_step_min"], strict=True)
    return {rank: step for rank, step in pairs if rank is not None and step is not None}


def _error(gap: Gap, table: str | None) -> MusterError:
    what = f"{table} is not in the bundle" if table else "not in the bundle"
    return _ERRORS[gap.state](f"{what}: {gap.reason}")


_AGAIN = "Copy the bundle again, or keep what is sound of it with `muster import DIR --out NEW`."
