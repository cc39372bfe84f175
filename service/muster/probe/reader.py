"""Reading what a recorder wrote, from another process: `pread` only, never a mapping, and never an exception for bad data.

    for life in discover(root, job):            # one per rank and life, oldest first within a rank
        life.meta(), life.alive(), life.tables()
        reader = life.reader("python.comm_collective")
        batch = reader.read_new()               # rows since the last call

Files may be cut short, damaged, or of a version that this code does not know: then the reader counts an error
(`LifeDir.errors()`), gives what it can, and goes on.

To see every operation exactly once read `in_flight()` *before* the rings and drop an in-flight row whose
(`thread_id`, `start_ns`) is among the completed ones.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from muster.model import JOB_ID
from muster.probe import errorlog, files, strings
from muster.probe.layout import FORMAT, PAGE, BadFile, unframe
from muster.probe.life import IN_FLIGHT, META, META_PAGES, OPEN_SPANS
from muster.probe.lock import LOCK_FILE, LockProbe
from muster.probe.reading import DataFile, RowDecoder, Texts
from muster.probe.ring import SUFFIX
from muster.tables import COMM_COLLECTIVE, REGISTRY, Table

roots = files.roots

_RANK = re.compile(r"rank-(\d{1,7})")
_LIFE = re.compile(r"\d{20}-\d+")
_FIRST_CHUNK = 16 << 10  # an idle ring is read often
_CHUNK = 256 << 10
_HOLE_SECONDS = 0.5  # how long a row may be claimed but not whole before it counts as lost
_END_AFTER = 64  # old rows in a row that mark the end of the new ones: more threads do not write at once


@dataclass(frozen=True, slots=True)
class Meta:
    """Who wrote a life directory. What is not known is None.

    `generation_final` is False until the process group is up and its shared id is known; `generation` may change once.
    `started_ns` is the clock of the host when recording began, `stopped_ns` when the process itself ended it (`stop()`):
    from then on a free lock says nothing of the process. `step_source` is user, optimizer, ddp, … or None so far.
    """

    job: str
    rank: int
    world_size: int | None
    life: str
    generation: str
    generation_final: bool
    pid: int
    start_ticks: int | None
    boot_id: str | None
    host: str
    node: str
    started_ns: int
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    role: str | None = None
    role_name: str | None = None
    role_rank: int | None = None
    role_world_size: int | None = None
    step_source: str | None = None
    gateway: str | None = None
    main_thread_id: int | None = None
    collectors: tuple[str, ...] = ()
    stopped_ns: int | None = None
    format: int = FORMAT


_META_FIELDS = frozenset(f.name for f in fields(Meta))


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span that has begun and not ended. Times are nanoseconds since the epoch."""

    thread_id: int
    span_id: int
    name: str | None
    phase: str | None
    start_ns: int
    is_main_thread: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows by column: equally long lists in the order of the table's columns. `lost` counts rows that were overwritten or
    torn before they could be read, since the call before."""

    columns: Mapping[str, list[Any]]
    rows: int
    lost: int


class RingReader:
    """Reads one table of one life. Not for several threads at once."""

    def __init__(self, table: Table, file: DataFile | None, decoder: RowDecoder | None) -> None:
        self.table = table
        self.lost = 0
        self._file = file
        self._decoder = decoder
        self._next = 1
        self._holes: dict[int, float] = {}

    @property
    def text_lost(self) -> int:
        """Long texts that were overwritten before they could be read; their rows have NULL instead."""
        return self._decoder.text_lost if self._decoder else 0

    def read_new(self, max_rows: int = 1_000_000) -> Batch:
        """The rows written since the last call, oldest first; the first call gives all that the ring still holds. More than
        `max_rows` are left for the next call."""
        if self._file is None or self._decoder is None:
            return Batch({c.name: [] for c in self.table.columns}, 0, 0)
        before = self.lost
        found: dict[int, tuple[Any, ...]] = {}
        self._retry_holes(found)
        if not self._read_on(found, max_rows):
            self._read_all(found, max_rows)
        rows = [found[number] for number in sorted(found)]
        return Batch(self._decoder.columns(rows), len(rows), self.lost - before)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_on(self, found: dict[int, tuple[Any, ...]], max_rows: int) -> bool:
        """Read forward from the next expected row. False when the writer has gone once around meanwhile."""
        assert self._file is not None
        assert self._decoder is not None
        header = self._file.header
        size, count = header.row_bytes, header.rows
        expected, missing = self._next, 0
        skipped: list[int] = []
        limit = self._next + min(count, max_rows)
        most = _FIRST_CHUNK
        while expected < limit and missing < _END_AFTER:
            slot = expected % count
            take = min(limit - expected, count - slot, max(most // size, 1))
            raw = self._file.read(header.rows_offset + slot * size, take * size)
            most = _CHUNK
            if len(raw) < size:
                break
            for at in range(0, len(raw) - size + 1, size):
                number = self._decoder.sequence(raw, at)
                row = self._decoder.row(raw, at) if number == expected else None
                if row is not None:
                    found[expected] = row
                    for hole in skipped:
                        self._holes.setdefault(hole, time.monotonic())
                    skipped.clear()
                    missing = 0
                    self._next = expected + 1
                elif number > expected and self._decoder.row(raw, at) is not None:
                    return False
                else:
                    missing += 1
                    skipped.append(expected)
                    if missing >= _END_AFTER:
                        break
                expected += 1
        return True

    def _read_all(self, found: dict[int, tuple[Any, ...]], max_rows: int) -> None:
        """Read the whole ring: after a lap, or at the first call on an old ring."""
        assert self._file is not None
        assert self._decoder is not None
        header = self._file.header
        size = header.row_bytes
        whole: dict[int, tuple[Any, ...]] = {}
        offset, left = header.rows_offset, header.rows
        while left > 0:
            take = min(left, max(_CHUNK // size, 1))
            raw = self._file.read(offset, take * size)
            for at in range(0, len(raw) - size + 1, size):
                row = self._decoder.row(raw, at)
                if row is not None and row[-3] >= self._next:
                    whole[row[-3]] = row
            if len(raw) < take * size:
                break
            offset += take * size
            left -= take
        if not whole:
            return
        numbers = sorted(whole)
        first = self._next
        taken = numbers[:max_rows]
        now = time.monotonic()
        oldest_possible = numbers[-1] - header.rows + 1
        for number in range(max(first, oldest_possible), taken[-1] + 1):
            if number not in whole:
                self._holes.setdefault(number, now)
        self.lost += max(0, min(oldest_possible, taken[-1] + 1) - first)
        found.update((n, whole[n]) for n in taken)
        self._next = taken[-1] + 1

    def _retry_holes(self, found: dict[int, tuple[Any, ...]]) -> None:
        """Rows that were claimed but not whole last time: whole now, or lost for good."""
        assert self._file is not None
        assert self._decoder is not None
        header = self._file.header
        now = time.monotonic()
        for number, since in list(self._holes.items()):
            raw = self._file.read(header.rows_offset + number % header.rows * header.row_bytes, header.row_bytes)
            row = self._decoder.row(raw)
            if row is not None and row[-3] == number:
                found[number] = row
                del self._holes[number]
            elif now - since > _HOLE_SECONDS or (row is not None and row[-3] > number):
                self.lost += 1
                del self._holes[number]


class LifeDir:
    """One life of one rank: the directory of one recording process."""

    def __init__(self, path: Path, job: str, rank: int) -> None:
        self.path = path
        self.job = job
        self.rank = rank
        self.life = path.name
        self._errors: dict[str, int] = {}
        self._messages: dict[str, str] = {}
        self._lock = LockProbe(path.parent / LOCK_FILE)
        self._texts = Texts(path / strings.NAME, self._count)
        self._slots: dict[str, tuple[DataFile, RowDecoder]] = {}
        self._tables: dict[str, Table] = {}

    def meta(self) -> Meta | None:
        """Read anew at each call; None while it cannot be read (counted)."""
        try:
            size = META_PAGES * PAGE
            descriptor = os.open(self.path / META, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                raw = os.pread(descriptor, 2 * size, 0)
            finally:
                os.close(descriptor)
            best: dict[str, Any] = {}
            problem: BadFile | None = None
            for at in (0, size):
                try:
                    value = unframe(raw[at : at + size])
                except BadFile as error:
                    problem = error
                else:
                    if value.get("version", 0) > best.get("version", 0):
                        best = value
            if not best:
                raise problem or BadFile("no copy is whole")
            known = {k: v for k, v in best.items() if k in _META_FIELDS}
            known["collectors"] = tuple(known.get("collectors") or ())
            return Meta(**known)
        except (OSError, BadFile, TypeError, ValueError) as error:
            self._count("reader.meta", error)
            return None

    def alive(self) -> bool:
        """True while the process that writes *this* life holds the owner lock (tested with F_GETLK, never acquired)."""
        try:
            return self._lock.holder() == self.life
        except OSError as error:
            self._count("reader.lock", error)
            return False

    def tables(self) -> list[Table]:
        """Every table that has a ring, with its self-described columns; custom tables too."""
        try:
            names = sorted(e.name for e in os.scandir(self.path) if e.name.endswith(SUFFIX))
        except OSError as error:
            self._count("reader.directory", error)
            return []
        return [t for t in (self._table(n) for n in names) if t is not None]

    def reader(self, table: Table | str) -> RingReader:
        """A new reader of a table's ring. Each reader has its own position. A ring that cannot be read is counted, and its
        reader gives no rows."""
        name = table if isinstance(table, str) else table.full_name
        try:
            file = DataFile(self.path / f"{name}{SUFFIX}")
        except (OSError, BadFile) as error:
            self._count(f"reader.{name}", error)
            known = REGISTRY.get(name) or Table(*(name.partition(".")[::2]), "", ())
            return RingReader(table if isinstance(table, Table) else known, None, None)
        return RingReader(_described(file), file, RowDecoder(file, self._texts, self._count))

    def in_flight(self) -> Batch:
        """Operations that have begun and not ended, as rows of python.comm_collective with end_ns and duration_ms NULL."""
        return self._read_slots(IN_FLIGHT, tuple(c.name for c in COMM_COLLECTIVE.columns))

    def open_spans(self) -> list[OpenSpan]:
        """Spans that are open now, oldest first, so outermost first within a thread."""
        batch = self._read_slots(OPEN_SPANS, ("thread_id", "span_id", "name", "phase", "start_ns", "is_main_thread"))
        spans = [OpenSpan(*values) for values in zip(*batch.columns.values(), strict=True)]
        return sorted(spans, key=lambda s: (s.start_ns, s.span_id))

    def errors(self) -> Mapping[str, int]:
        """Errors by place: those that the recorder counted, and those of this reader as `reader.…`."""
        batch = self._read_slots(errorlog.NAME, ("place", "count", "last"))
        counted = dict(zip(batch.columns["place"], batch.columns["count"], strict=True))
        return counted | self._errors

    def messages(self) -> Mapping[str, str]:
        """The last message of each place in `errors()`."""
        batch = self._read_slots(errorlog.NAME, ("place", "count", "last"))
        return dict(zip(batch.columns["place"], batch.columns["last"], strict=True)) | self._messages

    def close(self) -> None:
        self._lock.close()
        self._texts.close()
        for file, _ in self._slots.values():
            file.close()
        self._slots.clear()

    def _table(self, file_name: str) -> Table | None:
        known = self._tables.get(file_name)
        if known is None:
            try:
                file = DataFile(self.path / file_name)
                known = self._tables[file_name] = _described(file)
                file.close()
            except (OSError, BadFile) as error:
                self._count(f"reader.{file_name}", error)
        return known

    def _read_slots(self, name: str, wanted: Sequence[str]) -> Batch:
        """All taken slots, in the order in which they were written. A column that the file does not have is NULL."""
        rows: list[tuple[Any, ...]] = []
        columns: dict[str, list[Any]] = {}
        torn = 0
        try:
            if name not in self._slots:
                file = DataFile(self.path / name)
                self._slots[name] = (file, RowDecoder(file, self._texts, self._count))
            file, decoder = self._slots[name]
            header = file.header
            raw = file.read(header.rows_offset, header.rows * header.row_bytes)
            for at in range(0, len(raw) - header.row_bytes + 1, header.row_bytes):
                if decoder.sequence(raw, at) == 0:
                    continue
                row = decoder.row(raw, at)
                for _ in range(3):  # it was being written: look again
                    if row is not None:
                        break
                    row = decoder.row(file.read(header.rows_offset + at, header.row_bytes))
                if row is not None:
                    rows.append(row)
                else:
                    torn += 1
            columns = decoder.columns(sorted(rows, key=lambda r: int(r[-3])))
        except (OSError, BadFile) as error:
            self._count(f"reader.{name}", error)
            rows = []
        return Batch({c: columns.get(c, [None] * len(rows)) for c in wanted}, len(rows), torn)

    def _count(self, where: str, error: BaseException | str) -> None:
        self._errors[where] = self._errors.get(where, 0) + 1
        self._messages[where] = str(error)


def discover(root: str | Path, job: str) -> list[LifeDir]:
    """All lives of a job below a root, by rank and then by start. Directories of other owners are left out. Raises
    ValueError for a job id that cannot be a directory."""
    top = Path(root) / files.check_job(job)
    found = []
    for rank_dir in _directories(top):
        match = _RANK.fullmatch(rank_dir.name)
        if match:
            lives = [d for d in _directories(rank_dir) if _LIFE.fullmatch(d.name)]
            found += [LifeDir(d, job, int(match[1])) for d in lives]
    return sorted(found, key=lambda life: (life.rank, life.life))


def jobs(root: str | Path) -> list[str]:
    """Jobs that have a directory below a root."""
    return [d.name for d in _directories(Path(root)) if JOB_ID.fullmatch(d.name)]


def _directories(path: Path) -> list[Path]:
    """Directories of this user in a directory of this user, no links."""
    try:
        if not _ours(os.lstat(path)):
            return []
        with os.scandir(path) as entries:
            return sorted(Path(e.path) for e in entries if _ours(e.stat(follow_symlinks=False)))
    except OSError:
        return []


def _ours(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _described(file: DataFile) -> Table:
    """The table as the file describes it, with the meanings of the registry where it knows the column."""
    table = file.header.table()
    known = REGISTRY.get(table.full_name)
    if known is None:
        return table
    columns = tuple(replace(c, meaning=k.meaning) if (k := known.column(c.name)) else c for c in table.columns)
    return replace(table, meaning=known.meaning, columns=columns, scope=known.scope)
