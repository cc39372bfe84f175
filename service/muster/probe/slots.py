"""Rows that are not complete yet: a fixed number of slots, each free or holding one row.

A wrap of a ring can never erase them, and they outlive the process: the operations that a killed rank was in are here.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from muster.probe.codec import NO_PREFIX, OnError, Prefix, RowCodec
from muster.probe.files import create_file
from muster.probe.layout import ROW_TAIL, Header, cut, row_bytes
from muster.probe.strings import StringTable

_EMPTY = bytes(8)


class SlotFile:
    """Writes a file of slots. Taking a slot (`list.pop`) and its sequence number is atomic, so threads need no lock."""

    def __init__(
        self,
        directory: int,
        header: Header,
        slots: int,
        strings: StringTable | None,
        on_error: OnError,
        *,
        prefixed: int = 0,
    ) -> None:
        """`header`: name, fields (texts interned or inline) and origin. `prefixed`: how many of the first fields come as a
        prefix. Raises OSError when the file cannot be made."""
        size = row_bytes(header.fields)
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
        self._sequence = offset + size - ROW_TAIL.size
        self._codec = RowCodec(
            header.name,
            header.fields,
            prefixed,
            [strings.column() if strings is not None and f.store == "interned" else {} for f in header.fields],
            [partial(cut, cap=f.cap, json_value=f.json) for f in header.fields],
            on_error,
        )
        self._encode = self._codec.encode

    def put(self, row: tuple[Any, ...], prefix: Prefix = NO_PREFIX) -> int | None:
        """Write a row into a free slot and return the slot; None (counted) when all are taken."""
        if self._map is None:
            return None
        try:
            slot = self._free.pop()
        except IndexError:
            self._on_error(f"slots.{self.header.name}", "all slots are taken")
            return None
        self.replace(slot, row, prefix)
        return slot

    def replace(self, slot: int, row: tuple[Any, ...], prefix: Prefix = NO_PREFIX) -> None:
        """Write a slot's row anew."""
        mapping = self._map
        if mapping is None:
            return
        number = self._next()
        at = self._offset + slot * self._size
        try:
            mapping[at : at + self._size] = self._encode(number, prefix, row)
        except Exception as error:
            try:
                mapping[at : at + self._size] = self._codec.encode_fitted(number, prefix, row, error)
            except Exception as problem:
                self._on_error(f"row.{self.header.name}", problem)

    def free(self, slot: int) -> None:
        """Empty a slot for the next one."""
        mapping = self._map
        if mapping is not None:
            at = self._sequence + slot * self._size
            mapping[at : at + 8] = _EMPTY
        self._free.append(slot)

    def close(self) -> None:
        """Stop writing; the file stays."""
        self._map = None
