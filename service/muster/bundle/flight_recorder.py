"""Dumps of torch's flight recorder (pickle, or JSON of `fr_trace_json` and `dump_nccl_trace_json`) as Muster's tables.

Formats 2.0 to 2.10. One file a rank; the digits at the end of its name are the rank (`_dump_12`, `nccl_trace_rank_12`,
`rank12.json`). Other files are left alone.

- `pg_status` is keyed by the number that the group has in its process, `pg_config` by its name. Where both have the same
  length and all names are numbers, their numeric orders belong together (NCCL); entries must agree. Else (gloo) a name is
  known only for groups that have entries.
- A dump does not say when it was taken. torch writes it when an operation has exceeded its time-out, so `snapshot_id` of
  the folder is the oldest operation under way plus its time-out, never later than the newest file was changed, and never
  earlier than the newest time in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from muster.bundle.flight_recorder_entries import Dump, Entry, Status, dump_of
from muster.bundle.flight_recorder_pickle import plain_data
from muster.engine import arrow_type
from muster.errors import BadRequest, TooLarge
from muster.tables import FLIGHT_RECORD, NODES, PG_STATUS, Table

MAX_FILES = 16_384
MAX_FILE_BYTES = 64 << 20
MAX_FOLDER_BYTES = 1 << 30
MAX_WORLD = 65_536
_NAME = re.compile(r"(?<!\d)(\d{1,6})(?:\.(?:json|pkl|pickle))?\Z")


def load(directory: Path) -> dict[str, pa.Table]:
    """`python.torch_nccl_flight_record` and `python.torch_nccl_pg_status` (without tags) and `cluster.nodes` of a folder
    of dumps; ranks of the job that left none are `missing`. Raises BadRequest for files that are no dump, TooLarge beyond
    16,384 files, 64 MiB a file, 1 GiB together or 65,536 ranks."""
    files = _files(directory)
    dumps: dict[int, Dump] = {}
    left = MAX_FOLDER_BYTES
    for rank, path in sorted(files.items()):
        content = _read(path, min(left, MAX_FILE_BYTES))
        left -= len(content)
        dumps[rank] = dump_of(_parsed(content, path), str(path))
    world = 1 + max([*dumps, *(r for d in dumps.values() for r in d.highest_ranks)])
    if world > MAX_WORLD:
        raise TooLarge(f"{directory} speaks of {world:,} ranks, at most {MAX_WORLD:,}.", hint="Give one job's dumps.")
    taken_ns = _taken_ns(dumps, max(p.stat().st_mtime_ns for p in files.values()))
    return {
        FLIGHT_RECORD.full_name: _rows(
            [_entry(e, rank, world, taken_ns) for rank, d in dumps.items() for e in d.entries], FLIGHT_RECORD
        ),
        PG_STATUS.full_name: _rows(
            [_status(s, rank, world, taken_ns) for rank, d in dumps.items() for s in d.status], PG_STATUS
        ),
        NODES.full_name: _rows(
            [{"rank": r, "world_size": world, "status": "running" if r in dumps else "missing"} for r in range(world)],
            NODES,
        ),
    }


def _files(directory: Path) -> dict[int, Path]:
    files: dict[int, Path] = {}
    try:
        for path in sorted(directory.iterdir()):
            found = _NAME.search(path.name)
            if found is None or path.name.startswith(".") or not path.is_file():
                continue
            rank = int(found[1])
            if rank in files:
                raise BadRequest(
                    f"{files[rank].name} and {path.name} in {directory} are both of rank {rank}.",
                    hint="Keep the dumps of one time-out in one folder.",
                )
            files[rank] = path
            if len(files) > MAX_FILES:
                raise TooLarge(f"{directory} has more than {MAX_FILES:,} dumps.", hint="Give one job's dumps.")
    except OSError as error:
        raise BadRequest(f"{directory} cannot be read: {error.strerror}.", hint="Give the folder of the dumps.") from None
    if not files:
        raise BadRequest(
            f"{directory} has no dump of the flight recorder.",
            hint="A dump's name ends with its rank, such as nccl_trace_rank_3.",
        )
    return files


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}.", hint="Make it readable.") from None
    if len(content) > limit:
        raise TooLarge(
            f"{path} is larger than {limit:,} bytes.",
            hint="Dumps have at most 64 MiB each, 1 GiB together; make the recorder's buffer smaller.",
        )
    return content


def _parsed(content: bytes, path: Path) -> Any:
    if content.lstrip()[:1] != b"{":
        return plain_data(content, str(path))
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{path} is no JSON: {error}.", hint="Give the dump as torch wrote it.") from None


def _taken_ns(dumps: Mapping[int, Dump], changed_ns: int) -> int:
    entries = [e for d in dumps.values() for e in d.entries]
    newest = max((t for e in entries for t in e.times_ns), default=None)
    if newest is None:
        return changed_ns
    waits = [e for e in entries if e.under_way and e.time_created_ns and e.timeout_ms]
    limit = min((e.time_created_ns + e.timeout_ms * 1_000_000 for e in waits), default=newest)
    return max(newest, min(limit, changed_ns))


def _entry(entry: Entry, rank: int, world: int, taken_ns: int) -> dict[str, Any]:
    return {"snapshot_id": taken_ns, "rank": rank, "world_size": world, **entry.columns}


def _status(status: Status, rank: int, world: int, taken_ns: int) -> dict[str, Any]:
    return {"snapshot_id": taken_ns, "rank": rank, "world_size": world, **status}


def _rows(rows: list[dict[str, Any]], table: Table) -> pa.Table:
    schema = pa.schema([(c.name, arrow_type(c.type) or pa.null()) for c in table.columns])
    return pa.Table.from_pylist(rows, schema=schema)
