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

from muster.probe.codec import NO_PREFIX, OnError, Prefix, RowCodec
from muster.probe.files import create_file
from muster.probe.layout import Field, Header, cut, row_bytes
from muster.probe.strings import StringTable

SUFFIX = ".ring"
TEXT_ENTRY = struct.Struct("<QIH")  # place, crc32 of the text, length
_TEXT_SHARE = 3  # a table with long texts keeps a third of its bytes for them


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
    """Writes one ring file. `write` and `write_prefixed` never raise."""

    def __init__(
        self,
        directory: int,
        header: Header,
        size: int,
        strings: StringTable,
        on_error: OnError,
        *,
        prefixed: int = 0,
    ) -> None:
        """`header`: name, fields and origin; its sizes are worked out here from `size`, the bytes the file may take.
        `prefixed`: how many of the first fields `write_prefixed` gets as a prefix.
        Raises OSError when the file cannot be made, ValueError when not even two rows fit."""
        wide = row_bytes(header.fields)
        rows_offset = len(replace(header, row_bytes=wide, rows=size, text_bytes=size, text_offset=size).encode())
        has_area = any(f.store == "area" for f in header.fields)
        text_bytes = (size - rows_offset) // _TEXT_SHARE if has_area else 0
        rows = (size - rows_offset - text_bytes) // wide
        if rows < 2 or (has_area and text_bytes < 2 * TEXT_ENTRY.size):
            raise ValueError(f"{size} bytes are too few for {header.name}")
        text_offset = rows_offset + rows * wide
        self.header = replace(
            header, row_bytes=wide, rows=rows, rows_offset=rows_offset, text_offset=text_offset, text_bytes=text_bytes
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
        self.codec = RowCodec(
            header.name,
            header.fields,
            prefixed,
            [strings.column() if f.store == "interned" else {} for f in header.fields],
            [area.writer(f) if f.store == "area" else str for f in header.fields],
            on_error,
        )
        self._prefixed = prefixed
        self._encode = self.codec.encode
        self._rows = rows
        self._row_bytes = wide
        self._offset = rows_offset

    def write(self, row: tuple[Any, ...]) -> None:
        """Write one row: one value per column in the table's order, None for NULL. What does not fit its column is made to
        fit or becomes NULL, and is counted."""
        prefix = NO_PREFIX
        if self._prefixed:
            try:
                prefix, row = self.codec.split(row)
            except Exception as error:
                self._on_error(f"row.{self.header.name}", error)
                return
        self.write_prefixed(prefix, row)

    def write_prefixed(self, prefix: Prefix, rest: tuple[Any, ...]) -> None:
        """Write one row whose first columns are encoded already."""
        mapping = self._map
        if mapping is None:
            return
        number = self._next()
        at = self._offset + number % self._rows * self._row_bytes
        try:
            mapping[at : at + self._row_bytes] = self._encode(number, prefix, rest)
        except Exception as error:
            self._write_fitted(mapping, at, number, prefix, rest, error)

    def _write_fitted(
        self, mapping: mmap.mmap, at: int, number: int, prefix: Prefix, rest: tuple[Any, ...], error: BaseException
    ) -> None:
        try:
            mapping[at : at + self._row_bytes] = self.codec.encode_fitted(number, prefix, rest, error)
        except Exception as problem:  # the number stays unused: readers count its row as lost
            self._on_error(f"row.{self.header.name}", problem)

    def close(self) -> None:
        """Stop writing; the file stays."""
        self._map = None
