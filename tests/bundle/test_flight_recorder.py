"""Dumps of torch's flight recorder as tables: every format, nothing that runs, caps, errors that name the file."""

from __future__ import annotations

import builtins
import collections
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import orjson
import pytest

from muster.bundle.flight_recorder import load
from muster.errors import BadRequest, MusterError, TooLarge
from muster.tables import FLIGHT_RECORD, NODES, PG_STATUS

DUMPS = Path(__file__).parents[3] / "shared" / "data" / "flight_recorder"
T0 = 1_700_000_000_000_000_000


def entry(seq: int = 5, *, pg: str = "0", pg_id: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "record_id": seq, "pg_id": pg_id, "process_group": (pg, "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": "nccl:all_reduce", "time_created_ns": T0, "input_sizes": [[3, 4]],
        "input_dtypes": ["Float"], "output_sizes": [[3, 4]], "output_dtypes": ["Float"], "state": "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 1000,
        "is_p2p": False,
    } | more  # fmt: skip


def dump(*entries: dict[str, Any], version: str = "2.10", **more: Any) -> dict[str, Any]:
    return {
        "version": version,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": 5, "last_started_collective": -1, "last_completed_collective": 4}},
        "entries": list(entries),
    } | more


def written(folder: Path, content: Any, rank: int = 0) -> Path:
    raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol=2)
    (folder / f"nccl_trace_rank_{rank}").write_bytes(raw)
    return folder


def entries(folder: Path) -> list[dict[str, Any]]:
    return load(folder)[FLIGHT_RECORD.full_name].to_pylist()


def status(folder: Path) -> list[dict[str, Any]]:
    return load(folder)[PG_STATUS.full_name].to_pylist()


@pytest.mark.parametrize("version", [f"2.{n}" for n in range(11)])
def test_every_format_is_read(tmp_path: Path, version: str) -> None:
    (row,) = entries(written(tmp_path, dump(entry(), version=version)))
    assert (row["rank"], row["world_size"], row["pg_name"], row["pg_ranks"]) == (0, 2, "0", "[0, 1]")
    assert (row["collective_seq_id"], row["state"], row["is_p2p"], row["input_sizes"]) == (5, "scheduled", 0, "[[3,4]]")


@pytest.mark.parametrize("version", ["1.5", "3.0", "", None])
def test_other_formats_are_refused(tmp_path: Path, version: Any) -> None:
    with pytest.raises(BadRequest, match="format"):
        load(written(tmp_path, dump(version=version)))


def test_a_dump_without_groups_and_counters_has_its_entries(tmp_path: Path) -> None:
    content = {k: v for k, v in dump(entry()).items() if k in ("version", "entries")}
    (row,) = entries(written(tmp_path, content))
    assert (row["pg_name"], row["pg_ranks"]) == ("0", None)
    assert status(tmp_path) == []


def test_json_has_counters_as_text_and_zero_for_no_time(tmp_path: Path) -> None:
    given = dump(
        entry(time_discovered_started_ns=0), pg_status={"0": {"last_enqueued_collective": "7"}}, nccl_comm_state={}
    )
    (row,) = entries(written(tmp_path, orjson.dumps(given)))
    assert row["time_discovered_started_ns"] is None
    assert status(tmp_path)[0]["last_enqueued_collective"] == 7


def test_the_numeric_order_of_the_groups_maps_the_counters(tmp_path: Path) -> None:
    """ "9" is before "10", and number 3 in the process is the second group."""
    names = {n: {"name": n, "desc": f"d{n}", "ranks": "[0, 1]"} for n in ("10", "9")}
    counters = {str(i): {"last_enqueued_collective": i} for i in (3, 1)}
    written(tmp_path, dump(entry(pg="10", pg_id=3), pg_config=names, pg_status=counters))
    assert {(s["pg_id"], s["pg_name"]) for s in status(tmp_path)} == {(1, "9"), (3, "10")}


def test_where_entries_disagree_with_the_order_only_they_name_groups(tmp_path: Path) -> None:
    names = {n: {"name": n, "desc": n, "ranks": "[0, 1]"} for n in ("10", "9")}
    counters = {str(i): {"last_enqueued_collective": i} for i in (3, 1)}
    written(tmp_path, dump(entry(pg="9", pg_id=3), pg_config=names, pg_status=counters))
    assert {(s["pg_id"], s["pg_name"]) for s in status(tmp_path)} == {(1, None), (3, "9")}


def test_the_configuration_of_gloo_does_not_name_groups(tmp_path: Path) -> None:
    written(tmp_path, dump(entry(), pg_config={"": {"name": "", "desc": "", "ranks": "[0, 1]"}}))
    assert [(s["pg_name"], s["ranks"]) for s in status(tmp_path)] == [("0", None)]
    assert load(tmp_path)[NODES.full_name].num_rows == 2


def test_ranks_without_a_dump_are_missing_in_the_roster(tmp_path: Path) -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    for rank in (0, 2):
        written(tmp_path, dump(entry(), pg_config=config), rank)
    roster = load(tmp_path)[NODES.full_name].to_pylist()
    assert [(r["rank"], r["status"]) for r in roster] == [(0, "running"), (1, "missing"), (2, "running"), (3, "missing")]


def test_the_moment_is_the_time_out_but_never_after_the_file_was_changed(tmp_path: Path) -> None:
    written(tmp_path, dump(entry(timeout_ms=600_000)))
    assert entries(tmp_path)[0]["snapshot_id"] == T0 + 600_000_000_000
    os.utime(tmp_path / "nccl_trace_rank_0", ns=(T0 + 5, T0 + 5))
    assert entries(tmp_path)[0]["snapshot_id"] == T0 + 5
    os.utime(tmp_path / "nccl_trace_rank_0", ns=(0, 0))
    assert entries(tmp_path)[0]["snapshot_id"] == T0


def test_frames_and_durations(tmp_path: Path) -> None:
    frames = [{"name": "step", "filename": "/app/train.py", "line": 7}, {"name": "main", "filename": "x.py", "line": 1}]
    (row,) = entries(written(tmp_path, dump(entry(frames=frames, duration_ms=1.5))))
    assert (row["top_frame"], row["duration_ns"]) == ("step (train.py:7)", 1_500_000)
    assert orjson.loads(row["frames"])[1]["name"] == "main"


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/muster-was-here",)


class Evaluates:
    def __reduce__(self) -> tuple[Any, ...]:
        return builtins.eval, ("print('was here')",)


HOSTILE: dict[str, bytes] = {
    "os.system": pickle.dumps(Runs()),
    "eval inside a dump": pickle.dumps(dump(entry(profiling_name=Evaluates())), protocol=2),
    "an ordered dict": pickle.dumps(collections.OrderedDict(a=1)),
    "a set": pickle.dumps({1}),
    "protocol 0": pickle.dumps({"a": 1}, protocol=0),
    "global": b"cos\nsystem\n(S'true'\ntR.",
    "inst": b"(S'true'\nios\nsystem\n.",
    "obj": b"(cos\nsystem\nS'true'\no.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"\x80\x02Paway\n.",
    "bytearray": pickle.dumps(bytearray(b"x"), protocol=5),
    "a memo of 4 G": b"\x80\x02]r" + struct.pack("<I", 0xFFFFFFFF) + b".",
    "a frame beyond the file": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    "a text beyond the file": b"\x80\x02X" + struct.pack("<I", 0x7FFFFFFF) + b"a.",
    "bytes beyond the file": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"a.",
    "two pickles": pickle.dumps({}, protocol=2) * 2,
    "cut off": pickle.dumps(dump(entry()), protocol=2)[:-9],
    "nothing": b"",
    "empty stack": b"\x80\x02.",
    "no mark": b"\x80\x02t.",
    "unset memo": b"\x80\x02h\x07.",
    "unhashable key": b"\x80\x02}]]s.",
    "deep": b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
    "no pickle": b"hello",
    "no JSON": b"{'a': 1}",
    "deep JSON": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a list": pickle.dumps([1, 2], protocol=2),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_runs_and_what_is_no_dump_is_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadRequest) as caught:
        load(written(tmp_path, HOSTILE[name]))
    assert str(tmp_path / "nccl_trace_rank_0") in caught.value.detail
    assert capsys.readouterr().out == ""
    assert not Path("/tmp/muster-was-here").exists()


SELF: list[Any] = []
SELF.append(SELF)


@pytest.mark.parametrize(
    "wrong",
    [
        {"entries": 5}, {"entries": [5]}, {"pg_config": [1]}, {"pg_status": {"x": {}}}, {"pg_status": {"0": 1}},
        {"entries": [entry(collective_seq_id="five")]}, {"entries": [entry(collective_seq_id=1 << 70)]},
        {"entries": [entry(input_sizes=SELF)]}, {"entries": [entry(input_sizes=[b"x"])]},
        {"entries": [entry(process_group="0")]}, {"entries": [entry(state=b"x")]},
        {"pg_config": {"0": {"ranks": "[0, -1]"}}}, {"pg_config": {"0": {"ranks": "[0"}}},
        {"pg_config": {"0": {"ranks": 7}}}, {"entries": [entry(frames=[1])]},
        {"entries": [entry(profiling_name="x" * 70_000)]}, {"pg_config": {"0": {"ranks": "[99999999]"}}},
    ],
)  # fmt: skip
def test_fields_of_another_kind_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(MusterError) as caught:
        load(written(tmp_path, dump() | wrong))
    assert isinstance(caught.value, BadRequest | TooLarge)


def test_what_unfolds_without_end_is_refused(tmp_path: Path) -> None:
    """One text, referred to 8,000 times: a small file, half a gigabyte of rows."""
    shared = entry(profiling_name="x" * 65_000)
    with pytest.raises(TooLarge, match="unfolds"):
        load(written(tmp_path, dump(*[shared] * 8_000)))


def test_files_are_told_by_their_names(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no dump"):
        load(tmp_path)
    with pytest.raises(BadRequest, match="cannot be read"):
        load(tmp_path / "absent")
    written(tmp_path, dump(entry()), 1)
    (tmp_path / "fault_injection.log").write_text("rank 12")
    (tmp_path / "rank3.json").write_bytes(orjson.dumps(dump(entry())))
    assert [r["rank"] for r in entries(tmp_path)] == [1, 3]
    (tmp_path / "_dump_3").write_bytes(orjson.dumps(dump(entry())))
    with pytest.raises(BadRequest, match="both of rank 3"):
        load(tmp_path)


def test_a_file_beyond_the_cap_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "_dump_0").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(TooLarge, match="_dump_0"):
        load(tmp_path)


@pytest.mark.skipif(not DUMPS.is_dir(), reason="the public dumps are not beside the checkout (../shared/data)")
@pytest.mark.parametrize(("name", "count"), [("gpu_error_1st", 289), ("lock_gil_2nd", 216)])
def test_the_public_dumps_load_whole(name: str, count: int) -> None:
    tables = load(DUMPS / name)
    assert (tables[FLIGHT_RECORD.full_name].num_rows, tables[PG_STATUS.full_name].num_rows) == (count, 200)
    assert tables[NODES.full_name].num_rows == 16
    assert all(s["pg_name"] and s["ranks"] for s in tables[PG_STATUS.full_name].to_pylist())
