"""Rows of every type come back as they were written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.probe.layout import BadFile, Field, coerce, cut, decode_header, fields_of, frame, unframe
from muster.probe.reader import discover
from muster.tables import REGISTRY, Column
from probe.kit import make_recorder, rows

ints = st.integers(-(2**63), 2**63 - 1)
VALUES = st.tuples(
    st.none() | ints,
    st.none() | st.floats(allow_nan=True),
    st.none() | st.text(max_size=30),
    st.none() | st.text(max_size=40),
    st.none() | st.booleans(),
)
COLUMNS = {"a": int, "b": float, "c": str, "d": bool}


def same(left: Any, right: Any) -> bool:
    return left == right or (
        isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right)
    )


@given(values=st.lists(VALUES, max_size=20))
def test_every_type_round_trips_with_null_and_any_text(values: list[tuple[Any, ...]], tmp_path: Path) -> None:
    root = tmp_path / str(len(list(tmp_path.iterdir())))
    recorder = make_recorder(root)
    custom = recorder.custom("t.all", COLUMNS)
    checkpoints = recorder.table("python.checkpoint")
    for a, b, short, long, d in values:
        custom.write((a, b, long, d))
        checkpoints.write((a, None, a, short, b, None, None))
    life = discover(root, "job")[0]
    for got, (a, b, _, long, d) in zip(rows(life, "t.all"), values, strict=True):
        text = None if long is None else long.encode("utf-8", "replace").decode()
        assert (got["a"], got["c"], got["d"]) == (a, text, d)
        assert same(got["b"], b)
    for got, (a, b, short, _, _) in zip(rows(life, "python.checkpoint"), values, strict=True):
        text = None if short is None else short.encode("utf-8", "replace").decode()
        assert (got["ts"], got["rank"], got["step"], got["kind"]) == (a, None, a, text)
        assert same(got["duration_ms"], b)
    assert recorder.errors.counts() == {}
    life.close()
    recorder.close()


@given(value=st.integers())
def test_integers_beyond_64_bits_become_the_nearest_that_fits_and_are_counted(value: int, tmp_path: Path) -> None:
    value += (2**63) * (1 if value >= 0 else -1)
    root = tmp_path / str(len(list(tmp_path.iterdir())))
    recorder = make_recorder(root)
    recorder.custom("t.n", {"a": int}).row(a=value)
    life = discover(root, "job")[0]
    assert rows(life, "t.n")[0]["a"] == max(-(2**63), min(2**63 - 1, value))
    assert recorder.errors.counts() == ({} if value == -(2**63) else {"value.t.n": 1})
    life.close()
    recorder.close()


@pytest.mark.parametrize(
    ("kind", "value", "stored", "counted"),
    [
        (int, "x", None, True),
        (int, 3.0, 3, False),
        (int, 3.5, 3, True),
        (float, "1.5", 1.5, False),
        (float, object(), None, True),
        (str, 12, "12", False),
        (int, True, 1, False),
        (float, 2**2000, None, True),
    ],
)
def test_values_of_another_type_are_made_to_fit_or_null_and_counted(
    tmp_path: Path, kind: type, value: object, stored: object, counted: bool
) -> None:
    recorder = make_recorder(tmp_path)
    recorder.custom("t.n", {"a": kind}).row(a=value)
    life = discover(tmp_path, "job")[0]
    assert rows(life, "t.n") == [{"a": stored}]
    assert bool(recorder.errors.counts()) is counted
    life.close()
    recorder.close()


def test_a_row_with_too_few_values_is_dropped_counted_and_shown_as_lost(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path)
    writer = recorder.custom("t.n", {"a": int, "b": int})
    writer.write((1,))
    writer.write((1, 2))
    life = discover(tmp_path, "job")[0]
    assert rows(life, "t.n") == [{"a": 1, "b": 2}]
    assert life.errors() == {"row.t.n": 1}
    life.close()
    recorder.close()


@given(text=st.text(max_size=200), cap=st.integers(0, 120))
def test_long_text_is_cut_between_characters(text: str, cap: int) -> None:
    raw = cut(text, cap, False)
    assert raw is not None
    assert len(raw) <= cap
    whole = text.encode("utf-8", "replace")
    assert whole.startswith(raw)
    raw.decode()
    assert len(whole) <= cap or len(raw) > cap - 4


def test_json_that_does_not_fit_is_null_rather_than_half() -> None:
    assert cut("[1,2,3]", 4, True) is None
    assert cut("[1]", 4, True) == b"[1]"


def test_every_table_of_the_registry_can_be_stored() -> None:
    for table in REGISTRY.values():
        fields = fields_of(table.columns)
        assert len(fields) == len(table.columns)
        assert coerce(fields, [None] * len(fields)) == ((None,) * len(fields), 0)


def test_texts_in_slots_lie_within_the_row() -> None:
    columns = (Column("a", "VARCHAR", "", text_bytes=900), Column("b", "VARCHAR", ""))
    assert [f.store for f in fields_of(columns, inline=True)] == ["inline", "interned"]
    assert [f.store for f in fields_of(columns)] == ["area", "interned"]
    assert fields_of(columns, inline=True)[0].cap == 254


@given(raw=st.binary(max_size=200))
def test_any_bytes_are_a_header_or_a_bad_file(raw: bytes) -> None:
    with pytest.raises(BadFile):
        decode_header(raw)


@given(change=st.integers(0, 300), to=st.integers(0, 255))
def test_a_changed_byte_of_a_header_is_noticed(change: int, to: int) -> None:
    raw = bytearray(frame({"kind": "ring", "name": "x" * 300}))
    if raw[change] == to:
        return
    raw[change] = to
    with pytest.raises(BadFile):
        unframe(bytes(raw))


def test_a_header_of_another_format_number_is_refused_by_name() -> None:
    raw = bytearray(frame({}))
    raw[8] = 9
    with pytest.raises(BadFile, match="format 9"):
        unframe(bytes(raw))


def test_a_header_that_lies_about_its_rows_is_refused() -> None:
    value = {
        "kind": "ring", "name": "t.x", "row_bytes": 999, "rows": 5, "rows_offset": 4096, "text_offset": 0,
        "text_bytes": 0, "key_time": None, "life": "", "generation": "", "boot_id": None, "pid": 1, "created_ns": 1,
        "endian": "little", "fields": [{"name": "a", "type": "BIGINT", "store": "i64"}],
    }  # fmt: skip
    with pytest.raises(BadFile, match="contradicts"):
        decode_header(frame(value))
    assert Field("a", "BIGINT", "i64").code == "q"
