"""Writes a bundle: files first, the manifest last, and the directory gets its name when all of it is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from muster import __version__
from muster.bundle.manifest import (
    FORMAT,
    ColumnEntry,
    FileEntry,
    Manifest,
    NodeEntry,
    RankEntry,
    Source,
    TableEntry,
    write_manifest,
)
from muster.bundle.parquet import write_table
from muster.engine import arrow_type
from muster.errors import Conflict, ParameterError
from muster.model import ColumnType
from muster.tables import TAG_NAMES, TAGS
from muster.wording import rank_list


class BundleWriter:
    """A bundle under way, in a hidden directory beside its final place. Not for several threads at once."""

    def __init__(self, out: Path) -> None:
        """Raises Conflict where there is something already, ParameterError where nothing can be made."""
        self.out = out
        self.bytes = 0
        self.rows = 0
        self._schemas: dict[str, list[tuple[ColumnType, ...]]] = {}
        self._offered: dict[str, dict[str, int]] = {}  # node to table to place in schemas
        self._files: dict[str, list[FileEntry]] = {}
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise Conflict(f"{out} is there already and not empty.", hint="Name another directory with --out.")
        self._work = out.parent / f".{out.name}.{os.getpid()}.partial"
        try:
            self._work.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise ParameterError(f"{out} cannot be made: {error.strerror}.", hint="Name another with --out.") from None

    def offer(self, node: str, table: str, columns: Sequence[ColumnType]) -> None:
        """A node has this table with these columns (tags included), with or without rows."""
        known = self._schemas.setdefault(table, [])
        mine = tuple(columns)
        if mine not in known:
            known.append(mine)
        self._offered.setdefault(node, {})[table] = known.index(mine)

    def add(self, node: str, table: str, rank: int | None, rows: pa.Table) -> int:
        """Rows of one rank, or (None) of the node itself, tags included; gives the bytes on disk. No rows, no file."""
        if rows.num_rows == 0:
            return 0
        directory = self._work / table
        directory.mkdir(exist_ok=True, mode=0o700)
        name = f"node-{node}.parquet" if rank is None else f"rank-{rank}.parquet"
        size = write_table(rows.replace_schema_metadata(None), directory / name)
        entry = FileEntry(path=f"{table}/{name}", node=node, rank=rank, rows=rows.num_rows, bytes=size)
        self._files.setdefault(table, []).append(entry)
        self.bytes += size
        self.rows += rows.num_rows
        return size

    def finish(
        self,
        *,
        job: str,
        generation: str | None,
        recorded_at: datetime,
        source: Source,
        ranks: Sequence[RankEntry],
        nodes: Sequence[NodeEntry],
        notes: Sequence[str] = (),
        **more: Any,
    ) -> Manifest:
        """Write the manifest, give the directory its name, return the manifest. `more`: further members of it."""
        notes = [*notes, *_gaps(ranks)]
        manifest = Manifest(
            format=FORMAT,
            kind="tables",
            job=job,
            generation=generation,
            world_size=len(ranks),
            recorded_at=recorded_at,
            source=source.model_copy(update={"muster": __version__}),
            complete=not notes,
            notes=notes,
            ranks=list(ranks),
            nodes=[n.model_copy(update={"tables": self._offered.get(n.node, {})}) for n in nodes],
            tables=[
                TableEntry(
                    name=name,
                    schemas=[[ColumnEntry(name=c.name, type=c.type) for c in s] for s in schemas],
                    files=self._files.get(name, []),
                )
                for name, schemas in sorted(self._schemas.items())
            ],
            **more,
        )
        write_manifest(manifest, self._work)
        if self.out.is_dir():
            self.out.rmdir()
        self._work.rename(self.out)
        return manifest

    def abandon(self) -> None:
        """Remove what was written so far."""
        shutil.rmtree(self._work, ignore_errors=True)


def tagged(rows: pa.Table, rank: RankEntry | None, node: NodeEntry) -> pa.Table:
    """Rows with the tag columns in front, all of one rank, or (None) of the node itself."""
    values: Mapping[str, Any] = {
        "_host": rank.host if rank else node.host,
        "_addr": rank.addr if rank else node.addr,
        "_rank": rank.rank if rank else None,
        "_node_rank": rank.node_rank if rank else node.node_rank,
        "_local_rank": rank.local_rank if rank else None,
        "_role": rank.role if rank else None,
        "_generation": rank.generation if rank else None,
    }
    tags = [pa.array([values[t.name]] * rows.num_rows, arrow_type(t.type)) for t in TAGS]
    own = [n for n in rows.column_names if n not in TAG_NAMES]
    return pa.table([*tags, *(rows.column(n) for n in own)], names=[*TAG_NAMES, *own])


def _gaps(ranks: Sequence[RankEntry]) -> list[str]:
    """What is not in the bundle, in words, equal reasons together."""
    found: dict[str, list[int]] = {}
    for rank in ranks:
        for table, gap in rank.gaps.items():
            what = "nothing was recorded" if table == "*" else f"{table} is not in it"
            found.setdefault(f"{what}: {gap.state}, {gap.reason}", []).append(rank.rank)
        for table, rows in rank.cut.items():
            found.setdefault(f"{table}: only the newest {rows:,} rows", []).append(rank.rank)
    return [f"{rank_list(r)}: {text}" for text, r in found.items()]
