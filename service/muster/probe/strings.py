"""The table of texts of one life: every text of a low-cardinality column is stored once, rows hold its number.

File `strings`: header, then entries `length u32 · crc32 u32 · text`, each starting on 8 bytes. A text's number is its
offset in the entries / 8 + 1. Entries are only ever added.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Callable
from threading import RLock

from muster.probe.files import create_file
from muster.probe.layout import NOT_KEPT, Header, cut

NAME = "strings"
ENTRY = struct.Struct("<II")
MAX_TEXT = 8192

OnError = Callable[[str, BaseException | str], None]


class StringTable:
    """Writes the file. Texts beyond `MAX_TEXT` bytes are cut. One column may take a quarter of the room, so that a column
    that turns out to have many values cannot take it from the others."""

    def __init__(self, directory: int, header: Header, size: int, on_error: OnError) -> None:
        """Raises OSError when the file cannot be made."""
        head = header.encode()
        size = max(size, len(head) + MAX_TEXT)
        descriptor = create_file(NAME, directory, size)
        self._map = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self._map[: len(head)] = head
        self._base = len(head)
        self._room = size - len(head)
        self._used = 0
        self._numbers: dict[str, int] = {}
        self._lock = RLock()  # a signal handler or finaliser of the trainer may write a row while one is being written
        self._on_error = on_error

    def column(self) -> InternedColumn:
        """A mapping from text to number for one column."""
        return InternedColumn(self, self._room // 4)

    def number(self, text: str, room: int) -> tuple[int, int]:
        """The number of a text, added if it is new and takes no more than `room` bytes, and the bytes it took. A text for
        which there is no room has the number NOT_KEPT."""
        with self._lock:
            known = self._numbers.get(text)
            if known is not None:
                return known, 0
            raw = cut(text, MAX_TEXT, False) or b""
            need = -(-(ENTRY.size + len(raw)) // 8) * 8
            if need > room or self._used + need > self._room:
                self._on_error("strings.full", "no room for another text of this column")
                return NOT_KEPT, 0
            offset = self._used
            self._used = offset + need
            number = offset // 8 + 1
            entry = ENTRY.pack(len(raw), zlib.crc32(raw)) + raw
            self._map[self._base + offset : self._base + offset + len(entry)] = entry
            self._numbers[text] = number
            return number, need


class InternedColumn(dict[str | None, int]):
    """Numbers of the texts of one column. A look-up of a new text adds it."""

    def __init__(self, table: StringTable, room: int) -> None:
        super().__init__({None: 0})
        self._table = table
        self._room = room

    def __missing__(self, text: str | None) -> int:
        if not isinstance(text, str):
            raise TypeError(f"a text is needed, not {type(text).__name__}")
        number, took = self._table.number(text, self._room)
        self._room -= took
        if number != NOT_KEPT:
            self[text] = number
        return number
