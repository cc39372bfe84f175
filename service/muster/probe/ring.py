"""A table as a ring of rows in a mapped file: visible to other processes the moment a row is written, no flush, no thread.

Row n lies in slot n mod rows. Several threads may write: each takes its own number (`itertools.count`, atomic), so no
lock is needed. What a reader sees half-written fails its crc.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from threading import RLock
from typing import Any

from muster.probe.files import create_file
from muster.probe.layout import CRC, Field, Header, coerce, cut, encoder, row_struct
from muster.probe.strings import StringTable

SUFFIX = ".ring"
TEXT_ENTRY = struct.Struct("<QIH")  # place, crc32 of the text, length
_TEXT_SHARE = 3  # a table with long texts keeps a third of its bytes for them

OnError = Callable[[str, BaseException | str], None]


class TextArea:
    """Long texts of a ring: appended around and around in a part of its file. A row holds the place; a text that has
    been overwritten since carries another place and reads as NULL."""

    def __init__(self, mapping: mmap.mmap, offset: int, size: int) -> None:
        self._map = mapping
        self._offset = offset
        self._size = size
        self._next = 0
        self._lock = RLock()

    def writer(self, field: Field) -> Callable[[Any], int | None]:
        """A function that stores a text of a column and returns its place + 1; None for a JSON value that is too long."""
        cap = min(field.cap, self._size - TEXT_ENTRY.size)

        def put(text: Any) -> int | None:
            raw = cut(text, cap, field.json)
            return None if raw is None else self._put(raw)

        return put

    def _put(self, raw: bytes) -> int:
        need = TEXT_ENTRY.size + len(raw)
        with self._lock:
            place = self._next
            if place % self._size + need > self._size:
                place += self._size - place % self._size
            self._next = place + need
        at = self._offset + place % self._size
        self._map[at : at + need] = TEXT_ENTRY.pack(place, zlib.crc32(raw), len(raw)) + raw
        return place + 1


class Ring:
    """Writes one ring file. `write` never raises."""

    def __init__(self, directory: int, header: Header, size: int, strings: StringTable, on_error: OnError) -> None:
        """`header`: name, fields and origin; its sizes are worked out here from `size`, the bytes the file may take.
        Raises OSError when the file cannot be made, ValueError when not even two rows fit."""
        row_bytes = row_struct(header.fields).size + CRC.size
        rows_offset = len(replace(header, row_bytes=row_bytes, rows=size, text_bytes=size, text_offset=size).encode())
        has_area = any(f.store == "area" for f in header.fields)
        text_bytes = (size - rows_offset) // _TEXT_SHARE if has_area else 0
        rows = (size - rows_offset - text_bytes) // row_bytes
        if rows < 2 or (has_area and text_bytes < 2 * TEXT_ENTRY.size):
            raise ValueError(f"{size} bytes are too few for {header.name}")
        text_offset = rows_offset + rows * row_bytes
        self.header = replace(
            header, row_bytes=row_bytes, rows=rows, rows_offset=rows_offset, text_offset=text_offset, text_bytes=text_bytes
        )
        descriptor = create_file(header.name + SUFFIX, directory, text_offset + text_bytes)
        mapping = mmap.mmap(descriptor, text_offset + text_bytes)
        os.close(descriptor)
        head = self.header.encode()
        mapping[: len(head)] = head
        self._map: mmap.mmap | None = mapping
        self._on_error = on_error
        self._next = count(1).__next__
        area = TextArea(mapping, text_offset, text_bytes)
        self._encode = encoder(
            header.fields,
            [strings.column() if f.store == "interned" else {} for f in header.fields],
            [area.writer(f) if f.store == "area" else str for f in header.fields],
        )
        self._place = (rows, row_bytes, rows_offset)

    def write(self, row: tuple[Any, ...]) -> None:
        """Write one row: one value per column, None for NULL. What does not fit its column is made to fit or becomes NULL,
        and is counted."""
        mapping = self._map
        if mapping is None:
            return
        number = self._next()
        rows, size, offset = self._place
        at = offset + number % rows * size
        try:
            mapping[at : at + size] = self._encode(number, row)
        except Exception as error:
            self._write_coerced(mapping, at, number, row, error)

    def _write_coerced(self, mapping: mmap.mmap, at: int, number: int, row: tuple[Any, ...], error: BaseException) -> None:
        try:
            if self._map is None:
                return
            values, bad = coerce(self.header.fields, row)
            raw = self._encode(number, values)
            mapping[at : at + len(raw)] = raw
            if bad:
                self._on_error(f"value.{self.header.name}", error)
        except Exception as problem:  # the row's number stays unused: readers count it as lost
            self._on_error(f"row.{self.header.name}", problem)

    def close(self) -> None:
        """Stop writing; the file stays."""
        self._map = None
