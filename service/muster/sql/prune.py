"""Which ranks a fragment can concern at all: what its filter says of the tag columns.

Every row carries the rank, host, node and role that it came from. Where conditions fix or bound one of them by literals,
ranks of which the roster knows better need not be asked. An `OR`, a function or a column of the same meaning but another
name (`rank`) prunes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlglot import exp

from muster.sql.plan import Pin

NUMBERS = frozenset({"_rank", "_node_rank", "_local_rank"})
TEXTS = frozenset({"_host", "_role"})
_BOUNDS: dict[type[exp.Expr], tuple[str, int]] = {
    exp.GT: ("low", 1),
    exp.GTE: ("low", 0),
    exp.LT: ("high", -1),
    exp.LTE: ("high", 0),
}
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE}


def pins_of(conditions: Iterable[exp.Expr]) -> tuple[Pin, ...]:
    """What the conditions, joined by AND, say of the tags."""
    found = (pin for condition in conditions for pin in _pins(condition))
    return tuple(sorted(set(found), key=repr))


def _pins(condition: exp.Expr) -> Sequence[Pin]:
    if isinstance(condition, exp.In) and condition.expressions:
        values = [_value(v, condition.this) for v in condition.expressions]
        if all(v is not None for v in values):
            return [Pin(condition.this.name.lower(), frozenset(v for v in values if v is not None))]
    if isinstance(condition, exp.Between) and _is_number(condition.this):
        low, high = _value(condition.args["low"], condition.this), _value(condition.args["high"], condition.this)
        if isinstance(low, int) and isinstance(high, int) and not condition.args.get("symmetric"):
            return [Pin(condition.this.name.lower(), low=low, high=high)]
    if not isinstance(condition, exp.EQ | exp.GT | exp.GTE | exp.LT | exp.LTE):
        return []
    for column, other, kind in (
        (condition.this, condition.expression, type(condition)),
        (condition.expression, condition.this, _MIRRORED.get(type(condition), type(condition))),
    ):
        value = _value(other, column)
        if value is None:
            continue
        if kind is exp.EQ:
            return [Pin(column.name.lower(), frozenset({value}))]
        if isinstance(value, int):
            side, step = _BOUNDS[kind]
            bound = value + step
            name = column.name.lower()
            return [Pin(name, low=bound) if side == "low" else Pin(name, high=bound)]
    return []


def _is_number(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and node.name.lower() in NUMBERS


def _value(node: exp.Expr, column: exp.Expr) -> int | str | None:
    """A literal that a tag column is compared with, in the type of that column; None where it is not one."""
    if not isinstance(column, exp.Column):
        return None
    if column.name.lower() in NUMBERS:
        return _whole(node)
    if column.name.lower() in TEXTS:
        if isinstance(node, exp.Cast) and str(node.to.this.value).upper() in ("VARCHAR", "TEXT"):
            node = node.this
        return str(node.this) if isinstance(node, exp.Literal) and node.is_string else None
    return None


def _whole(node: exp.Expr) -> int | None:
    """A whole number, written out or as a bound parameter."""
    if isinstance(node, exp.Cast) and str(node.to.this.value).upper() == "BIGINT" and isinstance(node.this, exp.Literal):
        node = node.this
        return int(node.this) if node.this.removeprefix("-").isdigit() else None
    if isinstance(node, exp.Literal) and not node.is_string and node.this.isdigit():
        return int(node.this)
    return None
