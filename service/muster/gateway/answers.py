"""Answers to ad-hoc SQL: JSON, CSV or Arrow, by what the client accepts."""

from __future__ import annotations

import io
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv
from starlette.responses import Response

from muster.diagnosis.report import coverage_json
from muster.errors import OverBudget, ShardFailed
from muster.federation.service import StatementResult
from muster.federation.values import json_rows, json_value, python_values
from muster.gateway.requests import QueryBody
from muster.protocol import ARROW_STREAM

JSON = "application/json"
CSV = "text/csv"


def checked(result: StatementResult, body: QueryBody, max_rows: int, max_bytes: int) -> pa.Table:
    """The table of a result. Raises its error; OverBudget for too many rows or bytes; ShardFailed where the caller wants
    more ranks to have answered than did."""
    if result.error is not None:
        raise result.error
    assert result.table is not None
    coverage = result.coverage
    pruned_or_there = coverage.world_size - len(coverage.missing)
    share = pruned_or_there / coverage.world_size if coverage.world_size else 0.0
    if (body.on_partial == "fail" and not coverage.complete) or share < body.min_coverage:
        raise ShardFailed(
            f"{pruned_or_there} of {coverage.world_size} ranks answered.",
            hint="Accept less with on_partial=warn and a lower min_coverage; see coverage for who is missing.",
            coverage=coverage_json(coverage),
        )
    if result.table.num_rows > max_rows:
        raise OverBudget(
            f"The answer has {result.table.num_rows} rows; at most {max_rows} were asked for.",
            hint="Raise max_rows, or add LIMIT or a filter.",
        )
    if result.table.nbytes > max_bytes:
        raise OverBudget(
            f"The answer has {result.table.nbytes} bytes; at most {max_bytes} are sent.",
            hint="Aggregate, or ask for fewer rows or columns.",
        )
    return result.table


def respond(accept: str, table: pa.Table, result: StatementResult) -> Response:
    """The answer in the form that the client accepts; JSON by default."""
    headers = {"Cache-Control": "no-store", "Vary": "Accept"}
    coverage = coverage_json(result.coverage)
    headers["Muster-Coverage"] = f"{coverage['answered']}/{coverage['world_size']}"
    wanted = [part.partition(";")[0].strip() for part in accept.split(",")]
    kind = next((w for w in wanted if w in (JSON, CSV, ARROW_STREAM)), JSON)
    if kind == CSV:
        return Response(_csv(table), media_type=CSV, headers=headers)
    if kind == ARROW_STREAM:
        return Response(_arrow(table, coverage), media_type=ARROW_STREAM, headers=headers)
    content = {
        "columns": [{"name": c.name, "type": c.type, "exactness": c.exactness.value} for c in result.columns],
        "rows": json_rows(table),
        "coverage": coverage,
        "elapsed_ms": round(result.elapsed_ms, 3),
        "bytes_moved": result.bytes_moved,
        "waves": result.waves,
    }
    return Response(orjson.dumps(content), media_type=JSON, headers=headers)


def _csv(table: pa.Table) -> bytes:
    flat = [c if _is_plain(c) else pa.array([_cell(v) for v in python_values(c)], pa.string()) for c in table.columns]
    sink = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(flat, names=table.column_names), sink)
    return sink.getvalue()


def _is_plain(column: pa.ChunkedArray[Any]) -> bool:
    """Whether Arrow writes a column to CSV as it stands."""
    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_interval(kind) or pa.types.is_duration(kind):
        return False
    if not pa.types.is_temporal(kind) or (pa.types.is_timestamp(kind) and kind.unit == "ns"):
        return True
    try:
        column.to_pylist()
    except (ValueError, OverflowError):
        return False  # infinite, or beyond the year 9999
    return True


def _cell(value: object) -> str | None:
    """A value as the text of a cell: as in JSON, nested ones as JSON."""
    plain = json_value(value)
    return plain if plain is None or isinstance(plain, str) else orjson.dumps(plain).decode()


def _arrow(table: pa.Table, coverage: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    schema = table.schema.with_metadata({b"coverage": orjson.dumps(coverage)})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    return sink.getvalue()
