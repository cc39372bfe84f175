"""Values of an answer as JSON: what JSON has no number for is a text, and the column's type says what it is."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

SAFE_INTEGER = 2**53
_LAST_DAY = 2**31 - 1
_LAST_MOMENT = 2**63 - 1
"""What DuckDB's infinite dates and times are in Arrow."""
_TICKS: Mapping[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def json_rows(table: pa.Table, limit: int | None = None) -> list[list[Any]]:
    """The rows of a table (the first `limit`), each a list of JSON values in the order of the columns."""
    part = table if limit is None else table.slice(0, limit)
    columns = [[json_value(v) for v in python_values(column)] for column in part.columns]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(part.num_rows)]


def python_values(column: pa.ChunkedArray[Any]) -> list[Any]:
    """The values of a column as Python's. Times that Python does not have (infinite, beyond the year 9999, with
    nanoseconds) are texts."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        return [_python(scalar) for scalar in column]


def _python(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        kind = scalar.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_python(item) for item in scalar.values]
    if pa.types.is_struct(kind):
        return {name: _python(scalar[name]) for name in (kind.field(i).name for i in range(kind.num_fields))}
    if pa.types.is_map(kind):
        return [(_python(item["key"]), _python(item["value"])) for item in scalar.values]
    if pa.types.is_timestamp(kind):
        return _moment(scalar.value, kind.unit, kind.tz is not None)
    if pa.types.is_date32(kind) and abs(scalar.value) != _LAST_DAY:
        return f"{scalar.value} days since 1970-01-01"
    return "Infinity" if scalar.value > 0 else "-Infinity"


def _moment(value: int, unit: str, zoned: bool) -> str:
    if abs(value) == _LAST_MOMENT:
        return "Infinity" if value > 0 else "-Infinity"
    ticks = _TICKS[unit]
    whole, rest = divmod(value, ticks)
    try:
        moment = datetime.fromtimestamp(whole, UTC).replace(tzinfo=None).isoformat()
    except (ValueError, OverflowError):
        return f"{value} {unit} since 1970-01-01"
    digits = len(str(ticks)) - 1
    return f"{moment}.{rest:0{digits}d}{'Z' if zoned else ''}"


def json_value(value: Any) -> Any:
    """Integers within ±2^53 and finite floats are numbers; larger integers and DECIMAL are texts; NaN and infinities are
    "NaN", "Infinity", "-Infinity"; times are ISO 8601 (those with a time zone in UTC, ending in Z); bytes are base64."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -SAFE_INTEGER <= value <= SAFE_INTEGER else str(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, pa.MonthDayNano):
        return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}
    if isinstance(value, Mapping):
        return {str(k): json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(v) for v in value]
    return str(value)
