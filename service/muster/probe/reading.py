"""Decoding of the recorder's files from bytes that may be cut short, damaged or half-written. `pread` only."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from muster.probe.layout import NOT_KEPT, PAGE, ROW_TAIL, BadFile, Field, Header, decode_header, header_length, row_struct
from muster.probe.ring import TEXT_ENTRY
from muster.probe.strings import ENTRY, MAX_TEXT

_MAX_HEADER = 1 << 20

OnError = Callable[[str, BaseException | str], None]


class DataFile:
    """A file of the recorder, opened for reading. Raises OSError or BadFile when it cannot be used."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            length = header_length(self.read(0, 64))
            if length > _MAX_HEADER:
                raise BadFile(f"header of {length} bytes")
            self.header: Header = decode_header(self.read(0, length))
            self.header_bytes = -(-length // PAGE) * PAGE
        except BaseException:
            self.close()
            raise

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""
        parts = []
        while size > 0:
            part = os.pread(self._descriptor, size, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Texts:
    """The texts of a life by number, read when first needed."""

    def __init__(self, path: Path, on_error: OnError) -> None:
        self._path = path
        self._file: DataFile | None = None
        self._known: dict[int, str | None] = {0: None}
        self._on_error = on_error

    def __getitem__(self, number: int) -> str | None:
        known = self._known.get(number)
        if known is None and number != 0:
            known = self._read(number)
            if known is not None:
                self._known[number] = known
        return known

    def _read(self, number: int) -> str | None:
        if number == NOT_KEPT:
            self._on_error("reader.text_not_kept", "the writer's string table was full")
            return None
        try:
            if self._file is None:
                self._file = DataFile(self._path)
            at = self._file.header_bytes + (number - 1) * 8
            raw = self._file.read(at, ENTRY.size + 256)
            length, crc = ENTRY.unpack_from(raw)
            if length > MAX_TEXT:
                raise BadFile(f"text of {length} bytes")
            if length > 256:
                raw = self._file.read(at, ENTRY.size + length)
            body = raw[ENTRY.size : ENTRY.size + length]
            if len(body) != length or zlib.crc32(body) != crc:
                raise BadFile(f"text {number} is damaged")
            return body.decode("utf-8", "replace")
        except (OSError, BadFile, struct.error) as error:
            self._on_error("reader.strings", error)
            return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class RowDecoder:
    """Turns raw rows into columns."""

    def __init__(self, file: DataFile, texts: Texts, on_error: OnError) -> None:
        self._file = file
        self._texts = texts
        self._on_error = on_error
        self._struct = row_struct(file.header.fields)
        self.fields: Sequence[Field] = file.header.fields
        self.text_lost = 0

    def row(self, raw: bytes, at: int = 0) -> tuple[Any, ...] | None:
        """The row at an offset in its stored form; None if it is empty, torn or cut short. `row[-3]` is its sequence."""
        end = at + self._struct.size
        if len(raw) < end:
            return None
        row = self._struct.unpack_from(raw, at)
        if not row[-3] or zlib.crc32(memoryview(raw)[at : end - 4]) != row[-1]:
            return None
        return row

    def sequence(self, raw: bytes, at: int) -> int:
        """The sequence of the row at an offset, right or not."""
        return int(ROW_TAIL.unpack_from(raw, at + self._struct.size - ROW_TAIL.size)[0])

    def columns(self, rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
        """Values by column in the table's order, None for NULL."""
        fields = sorted(enumerate(self.fields), key=lambda item: item[1].at)
        if not rows:
            return {f.name: [] for _, f in fields}
        stored = list(zip(*rows, strict=True))
        nulls = stored[-2]
        some = 0
        for bits in nulls:
            some |= bits
        out: dict[str, list[Any]] = {}
        for i, field in fields:
            values: Sequence[Any] = stored[i]
            if field.store == "interned":
                texts = {number: self._texts[number] for number in set(values)}
                out[field.name] = [texts[v] for v in values]
                continue
            if field.store == "area":
                out[field.name] = [self._area(v) for v in values]
                continue
            if field.store == "inline":
                values = [v.decode("utf-8", "replace") for v in values]
            bit = 1 << i
            if some & bit:
                out[field.name] = [None if n & bit else v for v, n in zip(values, nulls, strict=True)]
            else:
                out[field.name] = list(values)
        return out

    def _area(self, place: int) -> str | None:
        if place == 0:
            return None
        place -= 1
        header = self._file.header
        if header.text_bytes > 0:
            raw = self._file.read(header.text_offset + place % header.text_bytes, TEXT_ENTRY.size + 256)
            if len(raw) >= TEXT_ENTRY.size:
                found, crc, length = TEXT_ENTRY.unpack_from(raw)
                if length > 256 and found == place:
                    raw = self._file.read(header.text_offset + place % header.text_bytes, TEXT_ENTRY.size + length)
                body = raw[TEXT_ENTRY.size : TEXT_ENTRY.size + length]
                if found == place and len(body) == length and zlib.crc32(body) == crc:
                    return body.decode("utf-8", "replace")
        self.text_lost += 1
        return None
