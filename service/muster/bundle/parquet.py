"""Parquet files of a bundle. What is read comes from outside: sizes and types are checked before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from muster.errors import BadRequest, TooLarge
from muster.wording import first_line

MAX_FILE_BYTES = 4 << 30
MAX_ROWS = 50_000_000
MAX_COLUMNS = 1024
MAX_TABLE_BYTES = 8 << 30
MAX_TOTAL_BYTES = 16 << 30
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on what is read: of one file bytes on disk, rows, and bytes in memory; of all files together bytes in memory."""

    file_bytes: int = MAX_FILE_BYTES
    rows: int = MAX_ROWS
    table_bytes: int = MAX_TABLE_BYTES
    total_bytes: int = MAX_TOTAL_BYTES


_PLAIN: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_string,
    pa.types.is_large_string, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_time64, pa.types.is_decimal128,
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_null,
)  # fmt: skip


def write_table(table: pa.Table, path: Path) -> int:
    """Write one file and return its size in bytes. Pages carry checksums, so that damage is found when it is read."""
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)
    return path.stat().st_size


def read_table(path: Path, limits: Limits | None = None, *, bytes_written: int | None = None) -> pa.Table:
    """All rows of a file, in plain types (texts that are dictionaries become texts).

    `bytes_written`: its size as the manifest says it. Raises BadRequest for what is missing, cut short, damaged or of a
    type that cannot be taken, TooLarge beyond a limit; both say what to do.
    """
    limits = limits or Limits()
    try:
        size = path.stat().st_size
        if bytes_written is not None and size != bytes_written:
            raise BadRequest(f"{path} has {size:,} bytes, {bytes_written:,} were written: it is not whole.", hint=_AGAIN)
        if size > limits.file_bytes:
            raise TooLarge(f"{path} has {size:,} bytes, at most {limits.file_bytes:,} are read.", hint=SMALLER)
        with pq.ParquetFile(
            path,
            page_checksum_verification=True,
            thrift_string_size_limit=16 << 20,
            thrift_container_size_limit=1 << 20,
        ) as file:
            return _read(file, path, limits)
    except FileNotFoundError:
        raise BadRequest(f"{path} is missing.", hint=_AGAIN) from None
    except (OSError, pa.ArrowException) as error:
        raise BadRequest(f"{path} cannot be read: {first_line(error)}", hint=_AGAIN) from None


def _read(file: pq.ParquetFile, path: Path, limits: Limits) -> pa.Table:
    if file.metadata.num_rows > limits.rows:
        raise TooLarge(f"{path} has {file.metadata.num_rows:,} rows, at most {limits.rows:,} are read.", hint=SMALLER)
    schema = pa.schema([pa.field(f.name, _plain(f, path)) for f in file.schema_arrow])
    if len(schema) > MAX_COLUMNS or len(set(schema.names)) != len(schema):
        raise BadRequest(f"{path} has more than {MAX_COLUMNS} columns, or two of one name.", hint="Select columns by name.")
    batches = []
    held = 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        batches.append(batch.cast(schema) if batch.schema != schema else batch)
        held += batches[-1].nbytes
        if held > limits.table_bytes:
            raise TooLarge(f"{path} takes more than {limits.table_bytes:,} bytes in memory.", hint=SMALLER)
    return pa.Table.from_batches(batches, schema)


def _plain(field: pa.Field[Any], path: Path) -> pa.DataType:
    """The type in which a column is taken. Raises BadRequest for nested, extension and other exotic types."""
    kind: pa.DataType = field.type
    if pa.types.is_dictionary(kind) and (pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type)):
        return pa.string()
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if not any(is_plain(kind) for is_plain in _PLAIN):
        raise BadRequest(
            f"{path}: column {field.name!r} has the type {str(kind)[:80]}, which is not taken.",
            hint="Write numbers, texts, booleans, dates or times; a nested value as a text of JSON.",
        )
    return kind


_AGAIN = "Copy the bundle again, or keep what is sound of it with `muster import DIR --out NEW`."
SMALLER = "Record or cut less of it: fewer rows, steps or ranks."
