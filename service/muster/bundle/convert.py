"""Bundles from what others left: tables in memory, parquet files per table, and bundles that are damaged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from muster.bundle.manifest import FileEntry, Gap, Manifest, NodeEntry, RankEntry, Source, read_manifest
from muster.bundle.owned import MAX_WORLD, TABLE, Owned, ranks_of, typed
from muster.bundle.parquet import SMALLER, Limits, read_table
from muster.bundle.writer import BundleWriter, tagged
from muster.errors import BadRequest, TooLarge
from muster.model import JOB_ID, ColumnType, RankStatus
from muster.tables import GATEWAY_TABLES, NODES, REGISTRY

RANKS_PER_SHARD = 64
GENERATION = "imported"
_RANK_FILE = re.compile(r"rank-(\d{1,7})\.parquet")


def from_tables(
    tables: Mapping[str, pa.Table], out: Path, *, job: str, kind: str, of: str | None = None, notes: Sequence[str] = ()
) -> Manifest:
    """Write a bundle of tables of one job and return its manifest.

    `tables`: full name to rows, without tag columns but (tables of ranks) with a column `rank`, or `_rank`;
    `cluster.nodes` is the roster: without it, the ranks that have rows. The job is seen as of its newest row. Raises
    BadRequest for rows that no rank owns or that do not fit the known columns, Conflict for a place that is taken.
    """
    if not JOB_ID.fullmatch(job):
        raise BadRequest(f"{job[:80]!r} is no job id.", hint="Name one with --job: letters, digits, dot, dash, underscore.")
    rows = {name: Owned.of(name, table) for name, table in tables.items() if name not in GATEWAY_TABLES}
    ranks, nodes = _roster(tables.get(NODES.full_name), rows)
    writer = BundleWriter(out)
    try:
        for name, owned in rows.items():
            _write(writer, name, owned, ranks, nodes)
        return writer.finish(
            job=job,
            generation=next((r.generation for r in ranks if r.generation), None),
            recorded_at=_moment(rows, tables.get(NODES.full_name)),
            source=Source(kind=kind, of=of),
            ranks=ranks,
            nodes=nodes,
            notes=notes,
        )
    except BaseException:
        writer.abandon()
        raise


def from_parquet(directory: Path, out: Path, *, job: str) -> Manifest:
    """A bundle of parquet files named after tables: `<schema>.<table>.parquet`, or files in a directory
    `<schema>.<table>` (there `rank-<n>.parquet` says whose the rows are if no column does). Raises as `from_tables`, and
    BadRequest where no file is named after a table."""
    tables: dict[str, list[pa.Table]] = {}
    limits = Limits()
    held = 0
    for name, path in table_files(directory):
        rows = read_table(path, limits)
        held += rows.nbytes
        if held > limits.total_bytes:
            raise TooLarge(f"{directory} takes more than {limits.total_bytes:,} bytes in memory.", hint=SMALLER)
        match = _RANK_FILE.fullmatch(path.name)
        if match and not {"rank", "_rank"} & set(rows.column_names):
            rows = rows.append_column("_rank", pa.array([int(match[1])] * rows.num_rows, pa.int64()))
        tables.setdefault(name, []).append(rows)
    if not tables:
        raise BadRequest(
            f"{directory} has no file <schema>.<table>.parquet.",
            hint="Name files after tables, such as python.torch_step_timing.parquet; docs/bundles.md has the layout.",
        )
    return from_tables({n: _together(n, parts) for n, parts in tables.items()}, out, job=job, kind="parquet")


def table_files(directory: Path) -> list[tuple[str, Path]]:
    """Parquet files of a directory that are named after a table, or lie in a directory that is."""
    found = []
    for path in sorted(directory.iterdir()):
        if path.is_dir() and TABLE.fullmatch(path.name):
            found += [(path.name, p) for p in sorted(path.glob("*.parquet"))]
        elif path.suffix == ".parquet" and TABLE.fullmatch(path.stem):
            found.append((path.stem, path))
    return found


def sound_part(directory: Path, out: Path) -> Manifest:
    """A new bundle of what can be read of one. Ranks lose the tables whose files are damaged or gone, and it is said."""
    old = read_manifest(directory)
    writer = BundleWriter(out)
    gaps: dict[int, dict[str, Gap]] = {r.rank: dict(r.gaps) for r in old.ranks}
    notes: list[str] = []
    try:
        for node in old.nodes:
            for table in old.tables:
                if table.name in node.tables:
                    columns = [ColumnType(c.name, c.type) for c in table.schemas[node.tables[table.name]]]
                    writer.offer(node.node, table.name, columns)
        for table in old.tables:
            for file in table.files:
                _carry(directory, file, table.name, writer, gaps, notes)
        kept = [r.model_copy(update={"gaps": gaps[r.rank]}) for r in old.ranks]
        told = {n for n in old.notes if not n.startswith("rank")}
        return writer.finish(
            job=old.job,
            generation=old.generation,
            recorded_at=old.recorded_at,
            source=old.source,
            ranks=kept,
            nodes=old.nodes,
            notes=[*(n for n in old.notes if n in told), *notes],
            previous_generations=old.previous_generations,
            first_seen=old.first_seen,
            exit=old.exit,
        )
    except BaseException:
        writer.abandon()
        raise


def _carry(
    directory: Path, file: FileEntry, table: str, writer: BundleWriter, gaps: dict[int, dict[str, Gap]], notes: list[str]
) -> None:
    try:
        rows = read_table(directory / file.path, bytes_written=file.bytes)
    except (BadRequest, TooLarge) as error:
        reason = f"its file could not be read any more: {error.detail.replace(str(directory) + '/', '')}"
        if file.rank is None:
            notes.append(f"node {file.node}: {table} is not in it: {reason}")
        else:
            gaps[file.rank][table] = Gap(reason=reason)
        return
    writer.add(file.node, table, file.rank, rows)


def _roster(roster: pa.Table | None, rows: Mapping[str, Owned]) -> tuple[list[RankEntry], list[NodeEntry]]:
    """Every rank that the roster or a row names, and what serves them: one entry for each host, or for 64 ranks where
    hosts are not known."""
    said: dict[int, dict[str, Any]] = {}
    for owned in rows.values():
        for number, tags in owned.tags.items():
            said[number] = said.get(number, {}) | tags
    said |= _listed(roster) if roster is not None else {}
    seen = {r for owned in rows.values() for r in owned.by_rank if r is not None}
    size = max([*(r + 1 for r in seen), *(r + 1 for r in said), *(o.world_size for o in rows.values())], default=0)
    size = max([size, *(r.get("world_size") or 0 for r in said.values())])
    if size > MAX_WORLD:
        raise TooLarge(f"The tables speak of {size:,} ranks, at most {MAX_WORLD:,} are taken.", hint="Cut it by rank.")
    ranks = [_rank(r, said.get(r), r in seen) for r in range(size)]
    nodes: dict[str, NodeEntry] = {}
    for place, rank in enumerate(ranks):
        if rank.status is RankStatus.MISSING and rank.rank not in seen:
            continue
        name = rank.served_by or ""
        nodes.setdefault(
            name,
            NodeEntry(
                node=name, host=rank.host or "unknown", addr=f"bundle:{name}", kind="bundle", node_rank=rank.node_rank
            ),
        )
        ranks[place] = rank.model_copy(update={"addr": nodes[name].addr})
    return ranks, list(nodes.values())


def _listed(roster: pa.Table) -> dict[int, dict[str, Any]]:
    """The rows of `cluster.nodes` by rank. Raises BadRequest for one without."""
    if "rank" not in roster.column_names:
        raise BadRequest(f"{NODES.full_name} has no column rank.", hint="One row for each rank, with its number.")
    ranks = ranks_of(NODES.full_name, roster.select(["rank"]), "rank")
    rows = typed(NODES.full_name, roster).to_pylist()
    if None in ranks or len(set(ranks)) != len(ranks):
        raise BadRequest(f"{NODES.full_name} has a rank twice, or rows of none.", hint="One row for each rank.")
    return {rank: row for rank, row in zip(ranks, rows, strict=True) if rank is not None}


def _rank(number: int, said: Mapping[str, Any] | None, seen: bool) -> RankEntry:
    said = said or {}
    host = said.get("host")
    status = said.get("status") or ("running" if seen else "missing")
    node = re.sub(r"[^A-Za-z0-9._-]", "-", host)[:253] if host else None
    there = seen or status != "missing"
    micros = said.get("last_seen")
    return RankEntry(
        rank=number,
        generation=(said.get("generation") or GENERATION) if there else None,
        node=node if there else None,
        shard=None if node or not there else f"part-{number // RANKS_PER_SHARD}",
        host=host,
        status=RankStatus(status) if status in RankStatus._value2member_map_ else RankStatus.RUNNING,
        node_rank=said.get("group_rank"),
        last_seen=datetime.fromtimestamp(micros / 1e6, UTC) if micros else None,
        local_rank=said.get("local_rank"),
        role=said.get("role"),
        role_name=said.get("role_name"),
        role_rank=said.get("role_rank"),
        role_world_size=said.get("role_world_size"),
        pid=said.get("pid"),
        last_progress_s=said.get("last_progress_s"),
    )


def _write(writer: BundleWriter, name: str, owned: Owned, ranks: Sequence[RankEntry], nodes: Sequence[NodeEntry]) -> None:
    known = REGISTRY.get(name)
    by_node = {n.node: n for n in nodes}
    if known is not None and known.scope == "node" and None in owned.by_rank and nodes:
        writer.offer(nodes[0].node, name, owned.columns)
        writer.add(nodes[0].node, name, None, tagged(owned.by_rank[None], None, nodes[0]))
    for node in nodes:
        writer.offer(node.node, name, owned.columns)
    for rank in ranks:
        mine = owned.by_rank.get(rank.rank)
        if mine is not None and rank.served_by is not None:
            writer.add(rank.served_by, name, rank.rank, tagged(mine, rank, by_node[rank.served_by]))


def _moment(rows: Mapping[str, Owned], roster: pa.Table | None) -> datetime:
    """The newest row, or the roster's own time; now where neither has a time."""
    stamps = [o.newest_ns for o in rows.values() if o.newest_ns is not None]
    if roster is not None and "timestamp" in roster.column_names and roster.num_rows:
        micros = pc.max(roster.column("timestamp")).as_py()
        stamps += [] if micros is None else [micros * 1000]
    if not stamps:
        return datetime.now(UTC)
    try:
        return datetime.fromtimestamp(max(stamps) / 1e9, UTC)
    except (OverflowError, ValueError, OSError):
        raise BadRequest(f"A time of {max(stamps)} ns since the epoch is none.", hint="Check the units.") from None


def _together(name: str, parts: Iterable[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(list(parts), promote_options="permissive")
    except pa.ArrowException as error:
        raise BadRequest(f"The files of {name} do not fit together: {str(error).splitlines()[0]}") from None
