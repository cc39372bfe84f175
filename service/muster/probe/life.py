"""The files of one life of one rank, on the side that writes them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.probe import errorlog, files, strings
from muster.probe.codec import OnError
from muster.probe.errorlog import ErrorLog
from muster.probe.identity import Identity, boot_id, start_ticks
from muster.probe.layout import PAGE, Field, Header, fields_of, frame
from muster.probe.lock import OwnerLock
from muster.probe.ring import Ring
from muster.probe.slots import SlotFile
from muster.probe.strings import StringTable
from muster.tables import Column, Table

META = "meta"
META_PAGES = 2  # of each of its two copies
IN_FLIGHT = "inflight"
OPEN_SPANS = "spans"
KEEP_LIVES = 2  # older lives of the rank are removed when a new one begins
MIN_BYTES = 384 << 10
_STRINGS_SHARE = 16

SPAN_FIELDS = (
    Field("thread_id", "BIGINT", "i64"),
    Field("span_id", "BIGINT", "i64"),
    Field("name", "VARCHAR", "interned"),
    Field("phase", "VARCHAR", "interned"),
    Field("start_ns", "BIGINT", "i64"),
    Field("is_main_thread", "BOOLEAN", "bool"),
)


class NoRoom(OSError):
    """Nowhere is there room or permission for the files."""


class Taken(OSError):
    """Another process records this rank."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What every header of a life says: who wrote it and when it began (ns since the epoch)."""

    life: str
    started_ns: int
    pid: int
    boot_id: str | None
    start_ticks: int | None


class Life:
    """Owns the lock, the directory and the byte budget; makes the files. Raises in its constructor only."""

    def __init__(self, roots: Sequence[Path], who: Identity, started_ns: int, ring_bytes: int, errors: ErrorLog) -> None:
        """Takes the first root that has room. Raises Taken when another process records this rank, NoRoom when no root
        can be used, ValueError for a job id that cannot be a directory."""
        files.check_job(who.job)
        self.errors = errors
        self._who = who
        pid = os.getpid()
        self.origin = Origin(f"{started_ns:020d}-{pid}", started_ns, pid, boot_id(), start_ticks(pid))
        reasons = []
        for root in roots:
            try:
                self._open(root, ring_bytes)
            except Taken:
                raise
            except (OSError, ValueError) as error:
                errors.count("start", error)
                reasons.append(f"{root}: {error}")
            else:
                self.root = root
                return
        raise NoRoom("; ".join(reasons))

    def _open(self, root: Path, ring_bytes: int) -> None:
        top = files.open_root(root)
        job = files.open_directory(self._who.job, top, create=True)
        rank = files.open_directory(f"rank-{self._who.rank}", job, create=True)
        lock = OwnerLock.acquire(rank, self.origin.life)
        for descriptor in (top, job):
            os.close(descriptor)
        if lock is None:
            os.close(rank)
            raise Taken(f"another process records rank {self._who.rank} of job {self._who.job}")
        try:
            self._remove_old(rank)
            self.left = files.budget(rank, ring_bytes)
            if self.left < MIN_BYTES:
                raise NoRoom(f"{self.left} bytes of room, {MIN_BYTES} are needed")
            self.directory = files.open_directory(self.origin.life, rank, create=True, fresh=True)
            try:
                self._fill()
            except BaseException:
                os.close(self.directory)
                files.remove_tree(self.origin.life, rank)
                raise
        except BaseException:
            lock.release()
            raise
        finally:
            os.close(rank)
        self.lock = lock

    @staticmethod
    def _remove_old(rank: int) -> None:
        with os.scandir(rank) as entries:
            lives = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        for life in lives[: -(KEEP_LIVES - 1)] if KEEP_LIVES > 1 else lives:
            files.remove_tree(life, rank)

    def _fill(self) -> None:
        size = 2 * META_PAGES * PAGE
        descriptor = files.create_file(META, self.directory, size)
        self._meta = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self._meta_version = 0
        self.left -= size
        room = self.left // _STRINGS_SHARE
        self.strings = StringTable(self.directory, self._header("strings", strings.NAME), room, self.errors.count)
        self.left -= room
        self.errors.attach(self.slots(errorlog.NAME, errorlog.FIELDS, errorlog.SLOTS, _nobody))

    def write_meta(self, extra: dict[str, Any]) -> None:
        """Write the meta file anew: identity, origin, and `extra`. Its two copies take turns, so one is always whole."""
        self._meta_version += 1
        value = self._who.as_dict() | {
            "version": self._meta_version,
            "life": self.origin.life,
            "started_ns": self.origin.started_ns,
            "pid": self.origin.pid,
            "boot_id": self.origin.boot_id,
            "start_ticks": self.origin.start_ticks,
        }
        raw = frame(value | extra, META_PAGES)
        at = self._meta_version % 2 * len(raw)
        self._meta[at : at + len(raw)] = raw

    def ring(self, table: Table, share: int, on_error: OnError, *, first: Sequence[str] = ()) -> Ring:
        """A new ring for a table with at most `share` bytes of the budget; the columns named in `first` come as a prefix.
        Raises OSError or ValueError if there is no room (the budget is then as before)."""
        size = min(share, self.left) // PAGE * PAGE
        header = self._header("ring", table.full_name, fields_of(table.columns, first=first), table.key_time)
        ring = Ring(self.directory, header, size, self.strings, on_error, prefixed=len(first))
        self.left -= size
        return ring

    def slots(self, name: str, fields: tuple[Field, ...], count: int, on_error: OnError, *, prefixed: int = 0) -> SlotFile:
        """A new file of slots. Raises OSError if there is no room."""
        header = self._header("slots", name, fields)
        made = SlotFile(self.directory, header, count, self.strings, on_error, prefixed=prefixed)
        self.left -= made.header.rows_offset + made.header.rows * made.header.row_bytes
        return made

    def in_flight(self, columns: Sequence[Column], count: int, *, first: Sequence[str]) -> SlotFile:
        """The slots of operations in flight: columns of their table, long texts within the row."""
        fields = fields_of(columns, inline=True, first=first)
        return self.slots(IN_FLIGHT, fields, count, self.errors.count, prefixed=len(first))

    def open_spans(self, count: int) -> SlotFile:
        """The slots of open spans."""
        return self.slots(OPEN_SPANS, SPAN_FIELDS, count, self.errors.count)

    def close(self) -> None:
        """Give the lock up; the files stay for the agent."""
        self.lock.release()
        os.close(self.directory)

    def abandon(self) -> None:
        """In a forked child: let go of what was inherited, without touching the parent's files or lock."""
        self.lock.abandon()
        os.close(self.directory)

    def _header(
        self, kind: str, name: str, fields: tuple[Field, ...] = (), key_time: tuple[str, int] | None = None
    ) -> Header:
        origin, who = self.origin, self._who
        return Header(
            kind=kind, name=name, fields=fields, key_time=key_time, life=origin.life, generation=who.generation,
            boot_id=origin.boot_id, pid=origin.pid, created_ns=origin.started_ns,
        )  # fmt: skip


def _nobody(_where: str, _error: BaseException | str) -> None:
    """Errors of the error log itself have nowhere to go."""
