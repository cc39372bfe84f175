"""Read what a shard sent: Arrow streams back to back, believed only as far as they were checked.

Nothing is allocated that the schema check has not allowed: the schema must be the expected one to the letter, buffers
must not be compressed, and rows and bytes must be what the metadata says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa

from muster.errors import (
    BadRequest,
    DeadlineExceeded,
    MusterError,
    OverBudget,
    ShardAnswerInvalid,
    ShardFailed,
    SqlBind,
    StatementFailed,
)
from muster.federation.shards.base import SubAnswer
from muster.protocol import SubQuery
from muster.wording import first_line

_META_BYTES = 64 << 10
_NOTES = 100
_NOTE_CHARS = 300
_SLACK = 1 << 16  # validity and offsets that a writer leaves out may be made when read
_ERRORS: Mapping[str, type[MusterError]] = {
    e.code: e for e in (StatementFailed, DeadlineExceeded, OverBudget, SqlBind, ShardFailed, BadRequest)
}


def decode(body: bytes, queries: Sequence[SubQuery], schemas: Mapping[str, pa.Schema]) -> list[SubAnswer]:
    """The answers to `queries`, in their order. One that is missing at the end (the shard was cut off) is an error of its
    own; anything that contradicts what was asked raises ShardAnswerInvalid for the whole body."""
    source = pa.BufferReader(body)
    answers: list[SubAnswer] = []
    for query in queries:
        if source.tell() >= len(body):
            answers.append(SubAnswer(query.id, error=ShardAnswerInvalid("The answer ends before this subquery.")))
            continue
        start = source.tell()
        try:
            answers.append(_one(source, query, schemas[query.id], len(body)))
        except ShardAnswerInvalid:
            raise
        except Exception as error:  # whatever hostile bytes provoke, it is their fault
            raise ShardAnswerInvalid(f"Subquery {query.id} is not a readable Arrow stream: {first_line(error)}") from None
        if source.tell() <= start:
            raise ShardAnswerInvalid("The answer does not advance.")
    if source.tell() < len(body):
        raise ShardAnswerInvalid("The answer holds more than was asked for.")
    return answers


def _one(source: pa.BufferReader, query: SubQuery, expected: pa.Schema, whole: int) -> SubAnswer:
    start = source.tell()
    messages = pa.ipc.MessageReader.open_stream(source)
    schema = pa.ipc.read_schema(messages.read_next_message())
    meta = _metadata(schema)
    if meta.get("id") != query.id:
        raise ShardAnswerInvalid(f"The answer to {meta.get('id')!r} came in place of {query.id!r}.")
    common = _common(meta)
    if "error" in meta:
        if len(schema) or next(_batches(messages, schema), None) is not None:
            raise ShardAnswerInvalid("An error came with columns.")
        return SubAnswer(query.id, error=problem_error(orjson.loads(meta["error"])), **common)
    _check_schema(schema, expected)
    rows, batches = int(meta["rows"]), int(meta["batches"])
    if rows > query.max_rows:
        raise ShardAnswerInvalid(f"{rows} rows came, at most {query.max_rows} were asked for.")
    found: list[pa.RecordBatch] = []
    seen = 0
    for batch in _batches(messages, schema):
        seen += batch.num_rows
        if seen > rows or batch.nbytes > whole + _SLACK:
            raise ShardAnswerInvalid("More rows or bytes came than were announced.")
        batch.validate(full=True)
        found.append(batch)
    if seen != rows or len(found) != batches:
        raise ShardAnswerInvalid(f"{seen} rows in {len(found)} batches came, {rows} in {batches} were announced.")
    table = pa.Table.from_batches([b.replace_schema_metadata(None) for b in found], schema=expected)
    return SubAnswer(query.id, table=table, nbytes=source.tell() - start, **common)


def _batches(messages: pa.MessageReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches up to the end of the stream. Other messages (dictionaries, tensors) and compressed bodies are refused
    before anything of them is decoded."""
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        if message.type != "record batch":
            raise ShardAnswerInvalid(f"A message of type {message.type!r} came.")
        if is_compressed(message.metadata.to_pybytes()):
            raise ShardAnswerInvalid("Compressed Arrow is not read.", hint="Send the stream uncompressed.")
        yield pa.ipc.read_record_batch(message, schema)


def is_compressed(metadata: bytes) -> bool:
    """Whether the metadata of a record batch names a compression (Arrow format, Message.fbs: `Message.header` is field 2,
    `RecordBatch.compression` field 3). Raises ValueError for metadata that is not a flatbuffer."""
    try:
        message = struct.unpack_from("<I", metadata, 0)[0]
        header = _field(metadata, message, 2)
        if header is None:
            raise ValueError("a message without a header")
        batch = header + struct.unpack_from("<I", metadata, header)[0]
        return _field(metadata, batch, 3) is not None
    except struct.error as error:
        raise ValueError(f"metadata is no flatbuffer: {error}") from None


def _field(data: bytes, table: int, index: int) -> int | None:
    """Position of a field of a flatbuffer table; None where it has its default."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise ValueError("a table that points outside")
    if 4 + 2 * index >= struct.unpack_from("<H", data, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", data, vtable + 4 + 2 * index)[0]
    return table + offset if offset else None


def _metadata(schema: pa.Schema) -> dict[str, str]:
    raw = schema.metadata or {}
    if sum(len(k) + len(v) for k, v in raw.items()) > _META_BYTES:
        raise ShardAnswerInvalid("The metadata of the answer is too long.")
    return {k.decode(): v.decode() for k, v in raw.items()}


def _common(meta: Mapping[str, str]) -> dict[str, Any]:
    ranks = orjson.loads(meta["ranks"]) if "ranks" in meta else None
    if ranks is not None and not (isinstance(ranks, list) and all(isinstance(r, int) for r in ranks)):
        raise ShardAnswerInvalid("The ranks of the answer are not numbers.")
    notes = orjson.loads(meta.get("notes", "[]"))
    if not (isinstance(notes, list) and all(isinstance(n, str) for n in notes)):
        raise ShardAnswerInvalid("The notes of the answer are not texts.")
    as_of = datetime.fromisoformat(meta["as_of"]) if "as_of" in meta else None
    return {
        "ranks": None if ranks is None else tuple(ranks),
        "as_of": as_of.replace(tzinfo=UTC) if as_of is not None and as_of.tzinfo is None else as_of,
        "oldest_step": int(meta["oldest_step"]) if "oldest_step" in meta else None,
        "rows_lost": int(meta.get("rows_lost", "0")),
        "notes": tuple(n[:_NOTE_CHARS] for n in notes[:_NOTES]),
        "elapsed_ms": float(meta["elapsed_ms"]) if "elapsed_ms" in meta else None,
    }


def _check_schema(found: pa.Schema, expected: pa.Schema) -> None:
    """Names and types to the letter. Since what is expected never holds dictionaries, run-ends, unions, views or
    extension types, none of these is ever decoded."""
    if found.names != expected.names:
        raise ShardAnswerInvalid(f"Columns {found.names[:20]} came, {expected.names[:20]} were asked for.")
    for mine, theirs in zip(expected, found, strict=True):
        if not mine.type.equals(theirs.type):
            raise ShardAnswerInvalid(f"Column {mine.name} came as {theirs.type}, not as {mine.type}.")


def problem_error(problem: object) -> MusterError:
    """The error that a problem object from a shard stands for."""
    if not isinstance(problem, dict):
        raise ShardAnswerInvalid("An error came that is not an object.")
    kind = _ERRORS.get(str(problem.get("code")), ShardFailed)
    extra: dict[str, Any] = {"table": str(problem["table"])[:256]} if "table" in problem else {}
    hint = problem.get("hint")
    return kind(str(problem.get("detail", "The probe failed."))[:1000], hint=str(hint)[:1000] if hint else None, **extra)
