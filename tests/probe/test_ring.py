"""What a reader sees of a ring while it is written, wraps, and is damaged."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from muster.probe.layout import PAGE
from muster.probe.reader import LifeDir, discover
from muster.probe.recorder import Recorder
from probe.kit import make_recorder, rows


@pytest.fixture
def numbers(recorder: Recorder) -> Any:
    return recorder.custom("t.n", {"a": int, "b": int, "text": str})


def ring_path(life: LifeDir, name: str = "t.n") -> Path:
    return life.path / f"{name}.ring"


def header(life: LifeDir, name: str = "t.n") -> Any:
    reader = life.reader(name)
    assert reader._file is not None
    found = reader._file.header
    reader.close()
    return found


def test_a_row_is_visible_at_once_and_once(numbers: Any, life: LifeDir) -> None:
    reader = life.reader("t.n")
    for i in range(5):
        numbers.row(a=i)
        assert reader.read_new().columns["a"] == [i]
    assert reader.read_new().rows == 0


def test_a_wrap_counts_what_was_overwritten(numbers: Any, life: LifeDir) -> None:
    size = header(life).rows
    reader = life.reader("t.n")
    for i in range(10):
        numbers.row(a=i)
    assert reader.read_new().lost == 0
    for i in range(10, 10 + size * 2 + 7):
        numbers.row(a=i)
    batch = reader.read_new()
    assert batch.lost == size + 7
    assert batch.columns["a"] == list(range(10 + size + 7, 10 + size * 2 + 7))
    assert reader.read_new().rows == 0
    numbers.row(a=-1)
    after = reader.read_new()
    assert (after.columns["a"], after.lost) == ([-1], 0)


def test_a_late_reader_gets_what_is_left_and_knows_what_it_missed(numbers: Any, life: LifeDir) -> None:
    size = header(life).rows
    for i in range(size + 3):
        numbers.row(a=i)
    batch = life.reader("t.n").read_new()
    assert (batch.rows, batch.lost) == (size, 3)
    assert batch.columns["a"] == list(range(3, size + 3))


def test_a_limit_leaves_the_rest_for_the_next_call(numbers: Any, life: LifeDir) -> None:
    for i in range(100):
        numbers.row(a=i)
    reader = life.reader("t.n")
    got = [reader.read_new(max_rows=30).columns["a"] for _ in range(5)]
    assert [len(g) for g in got] == [30, 30, 30, 10, 0]
    assert [a for part in got for a in part] == list(range(100))


def test_a_limit_holds_after_a_wrap_too(numbers: Any, life: LifeDir) -> None:
    size = header(life).rows
    for i in range(size + 50):
        numbers.row(a=i)
    reader = life.reader("t.n")
    first = reader.read_new(max_rows=30)
    assert (first.lost, first.columns["a"]) == (50, list(range(50, 80)))
    assert reader.read_new(max_rows=10**6).columns["a"] == list(range(80, size + 50))


@pytest.mark.parametrize("byte", [0, 8, 16, 24, -1])
def test_a_torn_row_is_dropped_and_counted_as_lost(numbers: Any, life: LifeDir, byte: int) -> None:
    for i in range(10):
        numbers.row(a=i, b=i)
    head = header(life)
    at = head.rows_offset + 4 * head.row_bytes + (byte if byte >= 0 else head.row_bytes - 1)
    flip(ring_path(life), at)
    reader = life.reader("t.n")
    batch = reader.read_new()
    assert batch.columns["a"] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    time.sleep(0.6)
    assert reader.read_new().lost == 1
    assert reader.lost == 1


def test_a_row_that_is_finished_later_is_read_then(numbers: Any, life: LifeDir) -> None:
    for i in range(10):
        numbers.row(a=i, b=i)
    head = header(life)
    at = head.rows_offset + 4 * head.row_bytes + 20
    before = flip(ring_path(life), at)
    reader = life.reader("t.n")
    assert reader.read_new().rows == 9
    write(ring_path(life), at, before)
    late = reader.read_new()
    assert (late.columns["a"], late.lost) == ([3], 0)


def test_a_long_text_that_was_overwritten_reads_as_null_and_is_counted(numbers: Any, life: LifeDir) -> None:
    size = header(life).rows
    for i in range(size):
        numbers.row(a=i, text=f"{i:05d}" * 20)
    reader = life.reader("t.n")
    batch = reader.read_new()
    assert batch.columns["a"] == list(range(size))
    kept = [(a, t) for a, t in zip(batch.columns["a"], batch.columns["text"], strict=True) if t is not None]
    assert kept
    assert all(t == f"{a:05d}" * 20 for a, t in kept)
    assert reader.text_lost == size - len(kept) > 0
    assert kept[-1][0] == size - 1


def test_threads_write_without_losing_or_mixing_rows(numbers: Any, life: LifeDir, recorder: Recorder) -> None:
    size = header(life).rows
    per_thread, reader, seen = size // 4, life.reader("t.n"), []
    done = threading.Event()

    def work(thread: int) -> None:
        for i in range(per_thread):
            numbers.row(a=thread * 1_000_000 + i, b=-(thread * 1_000_000 + i), text=f"{thread}:{i}")

    def read() -> None:
        while not done.is_set():
            seen.append(reader.read_new())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    reading = threading.Thread(target=read)
    reading.start()
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    done.set()
    reading.join(30)
    time.sleep(0.6)
    seen.append(reader.read_new())
    a = [v for b in seen for v in b.columns["a"]]
    b = [v for b in seen for v in b.columns["b"]]
    assert sorted(a) == sorted(t * 1_000_000 + i for t in range(4) for i in range(per_thread))
    assert b == [-v for v in a]
    assert sum(s.lost for s in seen) == 0
    assert recorder.errors.counts() == {}


def test_a_writer_thread_never_makes_a_reader_see_a_wrong_row(numbers: Any, life: LifeDir) -> None:
    stop = threading.Event()

    def work() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            numbers.write((i, i * 3, None))

    thread = threading.Thread(target=work)
    thread.start()
    reader = life.reader("t.n")
    end = time.monotonic() + 1.0
    total = 0
    while time.monotonic() < end:
        batch = reader.read_new()
        total += batch.rows
        assert all(b == a * 3 for a, b in zip(batch.columns["a"], batch.columns["b"], strict=True))
    stop.set()
    thread.join(10)
    assert total > 0


@pytest.mark.parametrize("keep", [0, 10, 4000, PAGE, PAGE + 100, 20_000])
def test_a_file_cut_short_gives_what_is_there_and_an_error_at_most(numbers: Any, life: LifeDir, keep: int) -> None:
    for i in range(200):
        numbers.row(a=i)
    copy = life.path / "t.cut.ring"
    copy.write_bytes(ring_path(life).read_bytes()[:keep])
    reader = life.reader("t.cut")
    batch = reader.read_new()
    assert batch.columns.get("a", []) == list(range(batch.rows))
    assert reader.read_new().rows == 0
    if keep < PAGE // 4:
        assert life.errors()["reader.t.cut"] == 1


def test_a_file_that_shrinks_while_it_is_read_is_survived(numbers: Any, life: LifeDir) -> None:
    for i in range(200):
        numbers.row(a=i)
    copy = life.path / "t.cut.ring"
    copy.write_bytes(ring_path(life).read_bytes())
    reader = life.reader("t.cut")
    reader.read_new(max_rows=50)
    os.truncate(copy, 5000)
    assert reader.read_new().rows == 0


@pytest.mark.parametrize("content", [b"", b"\0" * 9000, b"x" * 9000, b"MUSTREC1" + b"\xff" * 9000])
def test_a_file_that_is_not_ours_is_counted_not_raised(life: LifeDir, content: bytes) -> None:
    (life.path / "t.bad.ring").write_bytes(content)
    assert "t.bad" not in [t.full_name for t in life.tables()]
    assert life.reader("t.bad").read_new().rows == 0
    assert life.errors()["reader.t.bad"] == 1


def test_an_unknown_format_is_counted_and_said(numbers: Any, life: LifeDir) -> None:
    write(ring_path(life), 8, b"\x07")
    assert life.reader("t.n").read_new().rows == 0
    assert "format 7" in life.messages()["reader.t.n"]


def test_tables_describe_themselves(numbers: Any, life: LifeDir) -> None:
    custom = next(t for t in life.tables() if t.full_name == "t.n")
    assert [(c.name, c.type) for c in custom.columns] == [("a", "BIGINT"), ("b", "BIGINT"), ("text", "VARCHAR")]
    known = next(t for t in life.tables() if t.full_name == "python.comm_collective")
    assert known.column("participate_ranks").json
    assert known.key_time == ("start_ns", 1)
    assert known.scope == "rank"


def test_a_column_with_many_values_leaves_room_for_the_others(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path, ring_bytes=512 << 10)
    life = discover(tmp_path, "job")[0]
    log = recorder.collectives
    group = log.group("world", range(4))
    for i in range(5000):
        log.end(log.begin("all_reduce", group, shape=(i, 123456789)))
    log.end(log.begin("a_new_op", group, dtype="float99"))
    last = rows(life, "python.comm_collective")[-1]
    assert (last["op"], last["tensor_dtype"], last["tensor_shape"]) == ("a_new_op", "float99", None)
    assert life.errors()["strings.full"] > 0
    life.close()
    recorder.close()


def flip(path: Path, at: int) -> bytes:
    with path.open("r+b") as file:
        file.seek(at)
        before = file.read(1)
        file.seek(at)
        file.write(bytes([before[0] ^ 0xFF]))
    return before


def write(path: Path, at: int, raw: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(raw)
