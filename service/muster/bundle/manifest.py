"""`job.json` of a bundle: what was recorded of a job, when, from whom, and what is not in it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from muster.errors import BadRequest, NotFound, TooLarge
from muster.model import RankStatus
from muster.protocol import Engine, JobId, NodeId, Rank, ShortText

FORMAT = 1
NAME = "job.json"
MAX_MANIFEST_BYTES = 64 << 20
MAX_WORLD = 1 << 17
_TYPE = re.compile(
    r"BOOLEAN|U?(TINYINT|SMALLINT|INTEGER|BIGINT)|U?HUGEINT|FLOAT|DOUBLE|VARCHAR|BLOB|DATE|TIME"
    r"|TIMESTAMP(_S|_MS|_NS)?|TIMESTAMP WITH TIME ZONE|INTERVAL|DECIMAL\(\d{1,2},\s?\d{1,2}\)"
)
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}\.[A-Za-z_][A-Za-z0-9_]{0,62}")


def _plain_type(value: str) -> str:
    if not _TYPE.fullmatch(value):
        raise ValueError(f"{value[:60]!r} is not a type that a bundle may hold")
    return value


def _inside(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in value or "\\" in value:
        raise ValueError(f"{value[:60]!r} is not a path inside the bundle")
    return value


ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
TypeName = Annotated[str, AfterValidator(_plain_type)]
TableName = Annotated[str, StringConstraints(pattern=f"^{_TABLE.pattern}$")]
InnerPath = Annotated[str, StringConstraints(max_length=1024), AfterValidator(_inside)]


class Part(BaseModel):
    """Base: unknown members are ignored, so that an older Muster reads what a newer one added."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Gap(Part):
    """Why something is not in the bundle, as a state of coverage and a reason."""

    state: Literal["failed", "timed_out", "unreachable"] = "failed"
    reason: Annotated[str, StringConstraints(max_length=2000)]


class RankEntry(Part):
    """One rank of the roster as it was when the bundle was recorded.

    `shard` names its entry in `nodes` where that is no node of the job (imports that do not know hosts). `gaps`: tables (or
    `*` for all) of the rank that exist and are not in the bundle. `cut`: tables of which only the newest rows are.
    `oldest_step` and `rows_lost` are what its agent said of the rank's history.
    """

    rank: Rank
    generation: ShortText | None = None
    node: NodeId | None = None
    shard: NodeId | None = None
    host: ShortText | None = None
    addr: ShortText | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    role: ShortText | None = None
    role_name: ShortText | None = None
    role_rank: int | None = None
    role_world_size: int | None = None
    pid: int | None = None
    status: RankStatus = RankStatus.MISSING
    started_at: AwareDatetime | None = None
    last_seen: AwareDatetime | None = None
    last_progress_s: float | None = None
    oldest_step: int | None = None
    rows_lost: int = Field(default=0, ge=0)
    gaps: dict[str, Gap] = Field(default_factory=dict)
    cut: dict[str, int] = Field(default_factory=dict)

    @property
    def served_by(self) -> str | None:
        """The entry in `nodes` whose files hold its rows."""
        return self.shard or self.node


class NodeEntry(Part):
    """What served ranks of one node. `tables` maps each table that it offered to the place of its columns in
    `TableEntry.schemas`; None where that is not known."""

    node: NodeId
    host: ShortText
    addr: ShortText
    kind: Literal["agent", "probing", "torch", "bundle"] = "agent"
    alive: bool = True
    node_rank: int | None = None
    engine: Engine | None = None
    clock_offset_s: float | None = None
    first_seen: AwareDatetime | None = None
    last_seen: AwareDatetime | None = None
    as_of: AwareDatetime | None = None
    tables: dict[TableName, int] = Field(default_factory=dict)


class ColumnEntry(Part):
    name: ColumnName
    type: TypeName


class FileEntry(Part):
    """One parquet file: rows of one rank, or (`rank` None) of a node itself."""

    path: InnerPath
    node: NodeId
    rank: Rank | None = None
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)


class TableEntry(Part):
    """A table: the columns that nodes have for it (tags included), and its files. A rank without a file has no row."""

    name: TableName
    schemas: list[list[ColumnEntry]] = Field(min_length=1, max_length=1024)
    files: list[FileEntry] = Field(default_factory=list)


class Source(Part):
    """Where a bundle came from. `kind`: gateway, agents, rings, parquet, flight_recorder, trace or bundle."""

    kind: ShortText
    of: ShortText | None = None
    muster: ShortText | None = None


class Manifest(Part):
    """All of `job.json`. `recorded_at`: the moment whose state the bundle holds; ages are told as of it.

    `complete` is False where `notes` say what is not in it.
    """

    format: int
    kind: Literal["tables"]
    job: JobId
    generation: ShortText | None = None
    previous_generations: list[ShortText] = Field(default_factory=list)
    world_size: int = Field(ge=0, le=MAX_WORLD)
    recorded_at: AwareDatetime
    first_seen: AwareDatetime | None = None
    source: Source
    complete: bool = True
    notes: list[str] = Field(default_factory=list)
    ranks: list[RankEntry] = Field(max_length=MAX_WORLD)
    nodes: list[NodeEntry] = Field(default_factory=list)
    tables: list[TableEntry] = Field(default_factory=list, max_length=4096)
    exit: dict[str, Any] | None = None


def read_json(directory: Path) -> dict[str, Any]:
    """`job.json` of a directory as JSON. Raises NotFound where there is none, TooLarge, BadRequest for what is no JSON."""
    path = directory / NAME
    try:
        size = path.stat().st_size
        if size > MAX_MANIFEST_BYTES:
            raise TooLarge(f"{path} has {size:,} bytes, at most {MAX_MANIFEST_BYTES:,} are read.", hint=_RECORD)
        found = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        what = "has no job.json" if directory.is_dir() else "is not a directory"
        raise NotFound(f"{directory} {what}: that is no bundle.", hint=_RECORD) from None
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror or error}", hint=_RECORD) from None
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{path} is no JSON: {error}. It is damaged or cut short.", hint=_AGAIN) from None
    if not isinstance(found, dict):
        raise BadRequest(f"{path} holds no JSON object: that is no bundle.", hint=_RECORD)
    return found


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a bundle. Raises NotFound, TooLarge, or BadRequest naming what is wrong and what to do."""
    found = read_json(directory)
    path = directory / NAME
    if found.get("kind") == "rings":
        raise BadRequest(
            f"{directory} holds ring files, as `muster run` leaves them.",
            hint=f"Convert it: muster import {directory} --out NEW, then --from NEW.",
        )
    number = found.get("format")
    if type(number) is not int or number > FORMAT:
        raise BadRequest(
            f"{path} has format {str(number)[:20]}; this Muster reads formats up to {FORMAT}.",
            hint="Install a newer Muster (`muster version` prints this one).",
        )
    try:
        manifest = Manifest.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        raise BadRequest(f"{path}: {where}: {first['msg']}", hint=_AGAIN) from None
    _check(manifest, path)
    return manifest


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Write `job.json`, whole or not at all. Raises OSError."""
    text = orjson.dumps(manifest.model_dump(mode="json", exclude_none=True), option=orjson.OPT_INDENT_2) + b"\n"
    beside = directory / f".{NAME}"
    beside.write_bytes(text)
    os.replace(beside, directory / NAME)


def _check(manifest: Manifest, path: Path) -> None:
    """What the types cannot say: the roster is whole, and names agree."""
    if [r.rank for r in manifest.ranks] != list(range(manifest.world_size)):
        raise BadRequest(f"{path}: ranks must be 0 to world_size - 1, in order.", hint=_AGAIN)
    nodes = {n.node for n in manifest.nodes}
    tables = {t.name: len(t.schemas) for t in manifest.tables}
    _unique([n.node for n in manifest.nodes], "node", path)
    _unique([t.name for t in manifest.tables], "table", path)
    _unique([f.path for t in manifest.tables for f in t.files], "file", path)
    for node in manifest.nodes:
        for name, place in node.tables.items():
            if not 0 <= place < tables.get(name, 0):
                raise BadRequest(f"{path}: node {node.node} has columns of {name} that are not there.", hint=_AGAIN)
    owner = {r.rank: r.served_by for r in manifest.ranks}
    for table in manifest.tables:
        for file in table.files:
            if file.node not in nodes or (file.rank is not None and owner.get(file.rank) != file.node):
                raise BadRequest(f"{path}: {file.path} belongs to no rank of node {file.node}.", hint=_AGAIN)


def _unique(names: Sequence[str], what: str, path: Path) -> None:
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise BadRequest(f"{path}: {what} {twice} is there twice.", hint=_AGAIN)


def newest(times: Sequence[datetime | None]) -> datetime | None:
    """The latest of some moments."""
    return max((t for t in times if t is not None), default=None)


_RECORD = "Make one with `muster record JOB --out DIR`, or from what others left with `muster import SOURCE --out DIR`."
_AGAIN = "Copy the bundle again, or keep what is sound of it with `muster import DIR --out NEW`."
