"""`$name` parameters become typed literals: never text put into text."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from muster.errors import ParameterError
from muster.sql.plan import ParamValue
from muster.sql.scalars import literal

MAX_TEXT = 4_096


def type_of(value: ParamValue) -> str:
    """The DuckDB type that a parameter has: BOOLEAN, BIGINT, DOUBLE or VARCHAR."""
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT"
    if isinstance(value, float):
        return "DOUBLE"
    return "VARCHAR"


def check(params: Mapping[str, ParamValue]) -> None:
    """Raise ParameterError for a value that cannot be a parameter."""
    for name, value in params.items():
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ParameterError(
                f"The parameter {name} is a {type(value).__name__}.",
                hint="Give a number, a text, true, false or null.",
                parameter=name,
            )
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ParameterError(
                f"The parameter {name} does not fit into 64 bits.", hint="Give a smaller number.", parameter=name
            )
        if isinstance(value, str) and (len(value) > MAX_TEXT or "\x00" in value):
            raise ParameterError(
                f"The parameter {name} is longer than {MAX_TEXT} characters or holds NUL.",
                hint="Give a shorter text.",
                parameter=name,
            )


def bind(tree: exp.Expr, params: Mapping[str, ParamValue]) -> None:
    """Replace every `$name` in place. Raises ParameterError for one that has no value, and for `?` and `$1`."""
    for node in list(tree.find_all(exp.Placeholder, exp.Parameter)):
        name = node.name
        if not name or name == "?" or name.isdigit():
            raise ParameterError("Parameters have names here.", hint="Write $name and give params {name: value}.")
        if name not in params:
            raise ParameterError(
                f"The parameter ${name} has no value.",
                hint=f"Give params {{{name!r}: …}}. Given: {', '.join(sorted(params)) or 'none'}.",
                parameter=name,
            )
        value = params[name]
        node.replace(exp.Null() if value is None else literal(value, type_of(value)))
