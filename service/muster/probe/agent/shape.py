"""The columns of a table that several ranks describe: ranks may run different versions of a script or of a recorder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

from muster.tables import TAG_NAMES, Column, Table, Type

MAX_COLUMNS = 512
_RESERVED = frozenset({"_life", "_n", *TAG_NAMES})
_TYPES = frozenset(get_args(Type))


@dataclass(frozen=True, slots=True)
class Shape:
    """A table that has room for what one more rank describes. `added`: columns that it did not have. `left_out`: columns of
    that rank for which there is none, with the reason."""

    table: Table
    added: tuple[Column, ...]
    left_out: Mapping[str, str]


def united(known: Table, described: Table, *, fixed: bool) -> Shape:
    """The union by name. A column keeps the type in which it first came: a rank that has it in another type is left out of
    it, for a value that is silently another is a wrong answer. `fixed`: no column is added (tables of the registry)."""
    have = {c.name.lower(): c for c in known.columns}
    added: list[Column] = []
    left_out: dict[str, str] = {}
    for column in described.columns:
        name = column.name.lower()
        there = have.get(name)
        if there is not None:
            if there.name != column.name or there.type != column.type:
                left_out[column.name] = f"has type {column.type} there, {there.type} is kept"
        elif name in _RESERVED or column.type not in _TYPES or fixed:
            left_out[column.name] = "is not a column that can be kept"
        elif len(have) >= MAX_COLUMNS:
            left_out[column.name] = f"is one too many, {MAX_COLUMNS} are kept"
        else:
            have[name] = column
            added.append(column)
    return Shape(replace(known, columns=(*known.columns, *added)), tuple(added), left_out)
