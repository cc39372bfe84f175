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


def json_rows(table: pa.Table, limit: int | None = None) -> list[list[Any]]:
    """The rows of a table (the first `limit`), each a list of JSON values in the order of the columns."""
    part = table if limit is None else table.slice(0, limit)
    columns = [[json_value(v) for v in column.to_pylist()] for column in part.columns]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(part.num_rows)]


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
    if isinstance(value, Mapping):
        return {str(k): json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(v) for v in value]
    return str(value)
