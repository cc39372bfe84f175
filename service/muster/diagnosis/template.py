"""Messages: texts with {column} or {column:format}, filled from a row. Nothing else: no attributes, no indices, no code.

Formats: none (whole numbers as they are, other numbers with three digits, lists of ranks as `0, 3-5`), `ms`, `s` (a time in
seconds in the unit that reads best), `pct` (0.08 as 8 %), `x` (a ratio, two decimals).
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping
from typing import Any

from muster.wording import number_list

FORMATS = ("", "ms", "s", "pct", "x")


def fields(template: str) -> list[tuple[str, str]]:
    """The (column, format) pairs of a template. Raises ValueError for anything that is not of that form."""
    found = []
    for _, name, spec, conversion in _parts(template):
        if name is None:
            continue
        if not name.isidentifier() or conversion:
            raise ValueError(f"{{{name}}} is not the name of a column")
        if spec not in FORMATS:
            raise ValueError(f"{{{name}:{spec}}} has an unknown format; there are {', '.join(f for f in FORMATS if f)}")
        found.append((name, spec or ""))
    return found


def render(template: str, row: Mapping[str, Any]) -> str:
    """Fill a template. Raises KeyError for a column that the row has not."""
    out = []
    for literal, name, spec, _ in _parts(template):
        out.append(literal)
        if name is not None:
            out.append(_format(row[name], spec or ""))
    return "".join(out)


def seconds(value: float) -> str:
    """A time in the unit that reads best."""
    if abs(value) < 1:
        return f"{_digits(value * 1000)} ms"
    if abs(value) < 120:
        return f"{_digits(value)} s"
    return f"{_digits(value / 60)} min" if abs(value) < 7200 else f"{_digits(value / 3600)} h"


def _parts(template: str) -> Iterable[tuple[str, str | None, str | None, str | None]]:
    return string.Formatter().parse(template)


def _format(value: Any, spec: str) -> str:
    if value is None:
        return "?"
    if isinstance(value, list | tuple):
        values = [v for v in value if v is not None]
        if all(isinstance(v, int) for v in values):
            return number_list(values) or "-"
        return ", ".join(str(v) for v in values) or "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if spec == "ms":
        return seconds(value / 1000)
    if spec == "s":
        return seconds(value)
    if spec == "pct":
        return f"{_digits(value * 100)} %"
    if spec == "x":
        return f"{value:.2f}"
    return str(value) if isinstance(value, int) else _digits(value)


def _digits(value: float) -> str:
    """Three digits, without an exponent where it reads well."""
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude >= 2:
        return f"{value:.0f}" if magnitude < 12 else f"{value:.3g}"
    text = f"{value:.{min(9, 2 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
