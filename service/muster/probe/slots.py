"""Rows that are not complete yet: a fixed number of slots, each free or holding one row.

A wrap of a ring can never erase them, and they outlive the process: the operations that a killed rank was in are here.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from muster.probe.files import create_file
from muster.probe.layout import CRC, Header, coerce, cut, encoder, row_struct
from muster.probe.strings import StringTable

_EMPTY = struct.Struct("<Q")

OnError = Callable[[str, BaseException | str], None]


class SlotFile:
    """Writes a file of slots. Taking a slot (`list.pop`) and its sequence number is atomic, so threads need no lock."""

    def __init__(self, directory: int, header: Header, slots: int, strings: StringTable | None, on_error: OnError) -> None:
        """`header`: name, fields (texts interned or inline) and origin. Raises OSError when the file cannot be made."""
        size = row_struct(header.fields).size + CRC.size
        offset = len(replace(header, row_bytes=size, rows=slots, rows_offset=1 << 20).encode())
        self.header = replace(header, row_bytes=size, rows=slots, rows_offset=offset)
        descriptor = create_file(header.name, directory, offset + slots * size)
        mapping = mmap.mmap(descriptor, offset + slots * size)
        os.close(descriptor)
        head = self.header.encode()
        mapping[: len(head)] = head
        self._map: mmap.mmap | None = mapping
        self._on_error = on_error
        self._free = list(range(slots - 1, -1, -1))
        self._next = count(1).__next__
        self._size = size
        self._offset = offset
        self._encode = encoder(
            header.fields,
            [strings.column() if strings is not None and f.store == "interned" else {} for f in header.fields],
            [partial(cut, cap=f.cap, json_value=f.json) for f in header.fields],
        )

    def put(self, row: tuple[Any, ...]) -> int | None:
        """Write a row into a free slot and return the slot; None (counted) when all are taken."""
        if self._map is None:
            return None
        try:
            slot = self._free.pop()
        except IndexError:
            self._on_error(f"slots.{self.header.name}", "all slots are taken")
            return None
        self.replace(slot, row)
        return slot

    def replace(self, slot: int, row: tuple[Any, ...]) -> None:
        """Write a slot's row anew."""
        mapping = self._map
        if mapping is None:
            return
        at = self._offset + slot * self._size
        number = self._next()
        try:
            raw = self._encode(number, row)
        except Exception as error:
            raw = self._coerced(number, row, error)
        mapping[at : at + len(raw)] = raw

    def _coerced(self, number: int, row: tuple[Any, ...], error: BaseException) -> bytes:
        try:
            values, bad = coerce(self.header.fields, row)
            if bad:
                self._on_error(f"value.{self.header.name}", error)
            return self._encode(number, values)
        except Exception as problem:
            self._on_error(f"row.{self.header.name}", problem)
            return b""

    def free(self, slot: int) -> None:
        """Empty a slot for the next one."""
        mapping = self._map
        if mapping is not None:
            _EMPTY.pack_into(mapping, self._offset + slot * self._size, 0)
        self._free.append(slot)

    def close(self) -> None:
        """Stop writing; the file stays."""
        self._map = None
