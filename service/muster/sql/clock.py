"""The clock stands still while a request runs: every rank and the gateway see the same now().

`now()`, `current_timestamp`, `current_date`, `today()` and their kin become literals of one moment; `age(x)` becomes
`age(today, x)`. All in UTC, which is the time zone of the engine profile.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlglot import exp

from muster.sql.functions import CLOCK_FUNCTIONS
from muster.sql.scalars import literal

_NODES = (exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp, exp.Localtime, exp.Localtimestamp)
_NAMES: dict[type[exp.Expr], str] = {
    exp.CurrentDate: "current_date",
    exp.CurrentTime: "current_time",
    exp.CurrentTimestamp: "current_timestamp",
    exp.Localtime: "localtime",
    exp.Localtimestamp: "localtimestamp",
}


def reads_clock(tree: exp.Expr) -> bool:
    """Whether the answer depends on the moment."""
    return any(_clock_name(node) for node in tree.walk())


def freeze(tree: exp.Expr, now: datetime) -> None:
    """Replace in place whatever reads the clock by literals of `now` (aware)."""
    utc = now.astimezone(UTC).replace(tzinfo=None)
    for node in list(tree.walk()):
        name = _clock_name(node)
        if name == "age":
            node.set("expressions", [_value("current_date", utc), *node.expressions])
        elif name:
            node.replace(_value(name, utc))


def _clock_name(node: exp.Expr) -> str | None:
    if isinstance(node, _NODES):
        return _NAMES[type(node)]
    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
        if name in CLOCK_FUNCTIONS and not node.expressions:
            return name
        if name == "age" and len(node.expressions) == 1:
            return name
    return None


def _value(name: str, utc: datetime) -> exp.Expr:
    if name in ("current_date", "today"):
        return literal(utc.date(), "DATE")
    if name in ("current_localtime", "localtime"):
        return literal(utc.time(), "TIME")
    if name in ("current_localtimestamp", "localtimestamp"):
        return literal(utc, "TIMESTAMP")
    if name in ("current_time", "get_current_time"):
        return literal(f"{utc.time().isoformat()}+00", "TIME WITH TIME ZONE")
    return literal(f"{utc.isoformat(sep=' ')}+00", "TIMESTAMP WITH TIME ZONE")
