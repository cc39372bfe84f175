"""Rows to bytes, fast: the code is made once for the columns of a table.

Columns that many rows share (the group, operation and shape of a collective) can be encoded once, as a `Prefix`, and put in
front of the others.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.probe.layout import Field, coerce, row_bytes

OnError = Callable[[str, BaseException | str], None]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first columns of a row: their bytes, the crc32 of these, and their null bits."""

    raw: bytes
    crc: int
    nulls: int


Encode = Callable[[int, Prefix, tuple[Any, ...]], bytes]
NO_PREFIX = Prefix(b"", 0, 0)


class RowCodec:
    """Encodes rows of one file. `prefixed`: how many of the first fields a `Prefix` holds; 0 for none.

    `interned[i]` maps a text (or None) of field i to its number; `texts[i]` stores an inline or area text and returns what
    goes into the row, None for NULL.
    """

    def __init__(
        self,
        name: str,
        fields: Sequence[Field],
        prefixed: int,
        interned: Sequence[Mapping[str | None, int]],
        texts: Sequence[Callable[[Any], Any]],
        on_error: OnError,
    ) -> None:
        self.name = name
        self.fields = fields
        self.row_bytes = row_bytes(fields)
        self._head, self._tail = tuple(fields[:prefixed]), tuple(fields[prefixed:])
        self._on_error = on_error
        self._encode_head = _compile(self._head, 0, interned, texts, whole=False)
        self.encode = _compile(self._tail, prefixed, interned, texts, whole=True)
        """The bytes of a row from its number, its prefix, and its other columns in the order of the fields. Raises what
        struct raises for values that do not fit."""
        self._order = [f.at for f in fields]

    def prefix(self, values: tuple[Any, ...]) -> Prefix:
        """The first columns, encoded. What does not fit is made to fit and counted; raises only for a wrong number."""
        try:
            raw = self._encode_head(0, NO_PREFIX, values)
        except (TypeError, ValueError, OverflowError, struct.error) as error:
            raw = self._encode_head(0, NO_PREFIX, self._fit(self._head, values, error))
        return Prefix(raw[8:], zlib.crc32(raw[8:]), int.from_bytes(raw[:8], "little"))

    def encode_fitted(self, number: int, prefix: Prefix, rest: tuple[Any, ...], error: BaseException) -> bytes:
        """As `encode`, after it raised `error`: what does not fit is made to fit and counted. Raises ValueError for a wrong
        number of values."""
        return self.encode(number, prefix, self._fit(self._tail, rest, error))

    def split(self, row: Sequence[Any]) -> tuple[Prefix, tuple[Any, ...]]:
        """A row in the table's order as prefix and rest."""
        if len(row) != len(self._order):
            raise ValueError(f"{len(row)} values for {len(self._order)} columns")
        ordered = tuple([row[at] for at in self._order])
        return self.prefix(ordered[: len(self._head)]), ordered[len(self._head) :]

    def _fit(self, fields: Sequence[Field], values: Sequence[Any], error: BaseException) -> tuple[Any, ...]:
        fitting, bad = coerce(fields, values)
        if bad:
            self._on_error(f"value.{self.name}", error)
        return fitting


def _compile(
    fields: Sequence[Field],
    first: int,
    interned: Sequence[Mapping[str | None, int]],
    texts: Sequence[Callable[[Any], Any]],
    *,
    whole: bool,
) -> Encode:
    """A function that encodes these fields, compiled as dataclasses compile their methods: a loop over 30 columns would
    cost more than everything else. `whole`: with prefix, sequence, null bits and crc; else null bits, then the columns."""
    names = [f"c{i}" for i in range(len(fields))]
    lines = ["def encode(number, prefix, row):"]
    lines.append(f"    {', '.join(names)}, = row" if names else "    () = row")
    lines.append("    nulls = prefix.nulls")
    scope: dict[str, Any] = {"crc32": zlib.crc32, "pack_crc": struct.Struct("<I").pack}
    for i, (name, field) in enumerate(zip(names, fields, strict=True)):
        at = first + i
        if field.store == "interned":
            scope[f"s{i}"] = interned[at]
            lines.append(f"    {name} = s{i}[{name}]")
            continue
        if field.store in ("inline", "area"):
            scope[f"t{i}"] = texts[at]
            lines.append(f"    if {name} is not None: {name} = t{i}({name})")
        empty = "b''" if field.store == "inline" else "0"
        lines.append(f"    if {name} is None: nulls |= {1 << at}; {name} = {empty}")
    codes = "".join(f.code for f in fields)
    values = "".join(f"{name}, " for name in names)
    if whole:
        scope["pack"] = struct.Struct(f"<{codes}QQ").pack
        lines.append(f"    body = pack({values}number, nulls)")
        lines.append("    return prefix.raw + body + pack_crc(crc32(body, prefix.crc))")
    else:
        scope["pack"] = struct.Struct(f"<Q{codes}").pack
        lines.append(f"    return pack(nulls, {values})")
    exec("\n".join(lines), scope)  # noqa: S102 - made from column positions only, never from names or values
    made: Encode = scope["encode"]
    return made
