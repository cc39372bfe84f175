"""Values as typed literals: parameters, the clock, and what a first wave computed for a second one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, time
from functools import lru_cache
from typing import Any

from sqlglot import exp

from muster.errors import Internal
from muster.sql.dialect import DIALECT, write


def literal(value: object, type_name: str) -> exp.Expr:
    """`CAST('…' AS type)` of a value as the engine's client gives it. Exact for every type of `types.can_be_literal`."""
    text = None if value is None else _text(value)
    inner: exp.Expr = exp.Null() if text is None else exp.Literal.string(text)
    return exp.Cast(this=inner, to=type_expression(type_name))


def null(type_name: str) -> exp.Expr:
    """`CAST(NULL AS type)`."""
    return literal(None, type_name)


def type_expression(type_name: str) -> exp.DataType:
    """A type by its name in DESCRIBE, as a tree."""
    return _type(type_name).copy()


@lru_cache(maxsize=512)
def _type(type_name: str) -> exp.DataType:
    tree = DIALECT.parse(f"SELECT CAST(NULL AS {type_name})")[0]
    cast = tree.find(exp.Cast) if tree is not None else None
    if cast is None:
        raise Internal(f"{type_name!r} is not a type.")
    return cast.to


def substitute(sql: str, values: Mapping[str, tuple[Any, str]]) -> str:
    """`sql` with a typed literal for each `$id` of `values`: id → (value, DuckDB type).

    Raises Internal for a `$id` without a value: nothing runs half substituted.
    """
    tree = DIALECT.parse(sql)[0]
    if tree is None:
        raise Internal("There is no statement to substitute in.")
    return write(replace(tree, {name: literal(*pair) for name, pair in values.items()}))


def replace(tree: exp.Expr, values: Mapping[str, exp.Expr]) -> exp.Expr:
    """The tree with its placeholders replaced, in place. Raises Internal for one without a value."""
    for node in list(tree.find_all(exp.Placeholder)):
        name = node.name
        if name not in values:
            raise Internal(f"The value ${name} is not known.")
        node.replace(values[name].copy())
    return tree


def placeholders(tree: exp.Expr) -> tuple[str, ...]:
    """Names of the placeholders in a tree, sorted."""
    return tuple(sorted({node.name for node in tree.find_all(exp.Placeholder)}))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return repr(value)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value)
