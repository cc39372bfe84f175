"""The file format of the recorder: a self-describing header, and rows of fixed size.

Every file starts with a header: magic `MUSTREC1`, format number, length and crc32 of a JSON object, then the object.
It says what the file is (`kind`), how long a row is, where rows start, how many fit, and how each column is stored, so that
a reader of another version can tell what it does not understand. All numbers are little-endian.

A row is `columns · sequence u64 · null bits u64 · crc32 u32`. The crc covers all before it. Sequences start at 1;
0 is an empty row. Columns lie in the order of `fields`; `at` is a column's place in the table, and bit n of the null
bits belongs to `fields[n]`.

| store | in the row | NULL |
|---|---|---|
| `i64` `f64` `bool` | the value | null bit |
| `interned` | u32 number of a text in the life's `strings` file | 0 |
| `inline` | length byte and text, cut to `cap` bytes | null bit |
| `area` | u64 place of a text in the ring's text area, plus 1 | 0 |
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from muster.tables import Column, Table

MAGIC = b"MUSTREC1"
FORMAT = 1
PAGE = 4096
PRELUDE = struct.Struct("<8sIII")
ROW_TAIL = struct.Struct("<QQI")  # sequence, null bits, crc
MAX_COLUMNS = 64
MAX_INLINE = 254
MAX_AREA = 4096
NOT_KEPT = 0xFFFFFFFF
"""Number of a text that the full string table could not take: read as NULL, and counted."""

Store = Literal["i64", "f64", "bool", "interned", "inline", "area"]
_CODES: Mapping[str, str] = {"i64": "q", "f64": "d", "bool": "?", "interned": "I", "area": "Q"}
_TYPES: Mapping[str, Store] = {"BIGINT": "i64", "DOUBLE": "f64", "BOOLEAN": "bool"}
INT_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Field:
    """A column as it is stored. `cap` is the most bytes of an `inline` or `area` text, `at` its place in the table."""

    name: str
    type: str
    store: Store
    cap: int = 0
    json: bool = False
    unit: str = ""
    at: int = 0

    @property
    def code(self) -> str:
        """Its code for the struct module."""
        return f"{self.cap + 1}p" if self.store == "inline" else _CODES[self.store]


def fields_of(columns: Sequence[Column], *, inline: bool = False, first: Sequence[str] = ()) -> tuple[Field, ...]:
    """How columns are stored: texts with `text_bytes` in the text area, or within the row (`inline`), others interned.
    The columns named in `first` come first, in that order."""
    order = {name: i - len(first) for i, name in enumerate(first)}
    made = [_field(c, inline, at) for at, c in enumerate(columns)]
    return tuple(sorted(made, key=lambda f: order.get(f.name, f.at)))


def _field(column: Column, inline: bool, at: int) -> Field:
    store, cap = _TYPES.get(column.type), 0
    if store is None and not column.text_bytes:
        store = "interned"
    elif store is None and inline:
        store, cap = "inline", min(column.text_bytes, MAX_INLINE)
    elif store is None:
        store, cap = "area", min(column.text_bytes, MAX_AREA)
    return Field(column.name, column.type, store, cap, column.json, column.unit, at)


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself. `kind`: ring, slots, strings or meta. Sizes and offsets are bytes.

    `generation` is the one known when the file was made; the life's meta file has the final one.
    """

    kind: str
    name: str
    fields: tuple[Field, ...] = ()
    row_bytes: int = 0
    rows: int = 0
    rows_offset: int = 0
    text_offset: int = 0
    text_bytes: int = 0
    key_time: tuple[str, int] | None = None
    life: str = ""
    generation: str = ""
    boot_id: str | None = None
    pid: int = 0
    created_ns: int = 0
    endian: str = "little"

    def encode(self) -> bytes:
        """The header as bytes, a whole number of pages."""
        return frame(asdict(self))

    def table(self) -> Table:
        """The table that a ring describes. Meanings are not kept in files."""
        schema, _, name = self.name.partition(".")
        fields = sorted(self.fields, key=lambda f: f.at)
        columns = tuple(Column(f.name, f.type, "", f.unit, f.json, f.cap) for f in fields)  # type: ignore[arg-type]
        return Table(schema, name, "", columns, key_time=self.key_time)


class BadFile(ValueError):
    """A file that cannot be read: not ours, damaged, or of another format."""


def frame(value: Mapping[str, Any], pages: int = 0) -> bytes:
    """A JSON object with magic, format number, length and crc, padded to whole pages (`pages` of them, if given)."""
    body = json.dumps(value, separators=(",", ":")).encode()
    raw = PRELUDE.pack(MAGIC, FORMAT, len(body), zlib.crc32(body)) + body
    size = pages * PAGE or -(-len(raw) // PAGE) * PAGE
    if len(raw) > size:
        raise BadFile(f"{len(raw)} bytes do not fit into {size}")
    return raw.ljust(size, b"\0")


def unframe(raw: bytes) -> dict[str, Any]:
    """The JSON object of `frame`. Raises BadFile for anything else."""
    if len(raw) < PRELUDE.size:
        raise BadFile("too short for a header")
    magic, version, length, crc = PRELUDE.unpack_from(raw)
    if magic != MAGIC:
        raise BadFile("not a file of the recorder")
    if version != FORMAT:
        raise BadFile(f"format {version}, this reader knows {FORMAT}")
    body = raw[PRELUDE.size : PRELUDE.size + length]
    if len(body) != length or zlib.crc32(body) != crc:
        raise BadFile("header damaged or cut short")
    value = json.loads(body)
    if not isinstance(value, dict):
        raise BadFile("header is not an object")
    return value


def header_length(raw: bytes) -> int:
    """How many bytes of a file hold its header, from its first bytes. Raises BadFile."""
    if len(raw) < PRELUDE.size or raw[: len(MAGIC)] != MAGIC:
        raise BadFile("not a file of the recorder")
    return PRELUDE.size + int(PRELUDE.unpack_from(raw)[2])


def decode_header(raw: bytes) -> Header:
    """The header at the start of a file, checked so that no later arithmetic can go wrong. Raises BadFile."""
    value = unframe(raw)
    try:
        fields = tuple(Field(**f) for f in value.pop("fields"))
        key = value.pop("key_time")
        header = Header(**value, fields=fields, key_time=None if key is None else (str(key[0]), int(key[1])))
        row = row_bytes(fields) if fields else header.row_bytes
    except (TypeError, ValueError, KeyError, struct.error) as error:
        raise BadFile(f"header not understood: {error}") from error
    if header.endian != "little" or len(fields) > MAX_COLUMNS or header.row_bytes != row:
        raise BadFile("header contradicts itself")
    if min(header.rows, header.rows_offset, header.text_offset, header.text_bytes) < 0 or (fields and not header.rows):
        raise BadFile("header contradicts itself")
    return header


def row_struct(fields: Sequence[Field]) -> struct.Struct:
    """A whole row: columns, sequence, null bits, crc."""
    return struct.Struct("<" + "".join(f.code for f in fields) + "QQI")


def row_bytes(fields: Sequence[Field]) -> int:
    """Bytes of a row."""
    return row_struct(fields).size


def coerce(fields: Sequence[Field], row: Sequence[Any]) -> tuple[tuple[Any, ...], int]:
    """Values made to fit their columns, and how many could not be kept as they were: integers beyond 64 bits become the
    nearest that fits, what cannot be converted becomes NULL. Raises ValueError for a wrong number of values."""
    if len(row) != len(fields):
        raise ValueError(f"{len(row)} values for {len(fields)} columns")
    out, bad = [], 0
    for field, value in zip(fields, row, strict=True):
        new = value
        if value is not None:
            try:
                new = _CONVERT[field.type](value)
            except (TypeError, ValueError, OverflowError, RuntimeError):
                new = None
            if field.type == "BIGINT" and new is not None and not -INT_MAX - 1 <= new <= INT_MAX:
                new = INT_MAX if new > 0 else -INT_MAX - 1
            if new is None or (field.type == "BIGINT" and new != value):
                bad += 1
        out.append(new)
    return tuple(out), bad


_CONVERT: Mapping[str, Callable[[Any], Any]] = {"BIGINT": int, "DOUBLE": float, "BOOLEAN": bool, "VARCHAR": str}


def cut(text: Any, cap: int, json_value: bool) -> bytes | None:
    """A text as UTF-8 within `cap` bytes, cut between characters. A JSON value that is too long is None: half of one is
    worse than none."""
    raw = (text if isinstance(text, str) else str(text)).encode("utf-8", "replace")
    if len(raw) <= cap:
        return raw
    return None if json_value else raw[:cap].decode("utf-8", "ignore").encode()
