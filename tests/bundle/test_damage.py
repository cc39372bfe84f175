"""Bundles that are not whole, or made to do harm: refused with the way out, or read for what is sound."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from muster.bundle.convert import sound_part
from muster.bundle.manifest import read_manifest
from muster.bundle.offline import Offline
from muster.bundle.parquet import Limits, read_table, write_table
from muster.bundle.shards import _as
from muster.errors import BadRequest, MusterError, NotFound, TooLarge

FILE = "python.torch_step_timing/rank-1.parquet"


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    shutil.copytree(bundle, tmp_path / "copy")
    return tmp_path / "copy"


def change(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "job.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    path.write_bytes(bytes(raw))


@pytest.mark.parametrize("harm", [cut_short, flip, Path.unlink], ids=["cut short", "one byte flipped", "gone"])
def test_a_damaged_file_is_named_with_the_way_out_and_that_way_works(
    copy: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    harm(copy / FILE)
    with Offline(copy) as offline, pytest.raises(BadRequest) as caught:
        offline.query(None, "SELECT count(*) FROM python.torch_step_timing")
    assert FILE in caught.value.detail
    assert "muster import DIR --out NEW" in str(caught.value.hint)
    manifest = sound_part(copy, tmp_path / "sound")
    assert not manifest.complete
    assert any("rank 1: python.torch_step_timing is not in it" in n for n in manifest.notes), manifest.notes
    with Offline(tmp_path / "sound") as offline:
        found = offline.query(None, "SELECT _rank, count(*) FROM python.torch_step_timing GROUP BY 1 ORDER BY 1")
        assert found.rows == [[0, 20], [2, 20], [3, 20]]
        assert [(m["rank"], m["state"]) for m in found.coverage["missing"]] == [(1, "failed")]
        assert offline.query(None, "SELECT count(*) FROM python.comm_collective").coverage["complete"]
        steps = offline.health().body["steps"]
        assert [s["name"] for s in steps if not s["coverage"]["complete"]]


def test_the_sound_part_of_a_sound_bundle_is_all_of_it(bundle: Path, tmp_path: Path) -> None:
    again = sound_part(bundle, tmp_path / "again")
    old = read_manifest(bundle)
    assert again.complete
    assert again.ranks == old.ranks
    assert again.nodes == old.nodes
    assert [t.name for t in again.tables] == [t.name for t in old.tables]
    assert again.recorded_at == old.recorded_at


def _file(manifest: dict[str, Any]) -> dict[str, Any]:
    return next(f for t in manifest["tables"] for f in t.get("files", []))


def _drop_first_rank(manifest: dict[str, Any]) -> None:
    del manifest["ranks"][0]


def _twice(manifest: dict[str, Any]) -> None:
    manifest["nodes"].append(manifest["nodes"][0])


def _of_another_node(manifest: dict[str, Any]) -> None:
    _file(manifest)["node"] = "n9"


def _no_such_columns(manifest: dict[str, Any]) -> None:
    node = manifest["nodes"][0]
    node["tables"][next(iter(node["tables"]))] = 7


def _escape(manifest: dict[str, Any]) -> None:
    _file(manifest)["path"] = "../../etc/passwd"


def _absolute(manifest: dict[str, Any]) -> None:
    _file(manifest)["path"] = "/etc/passwd"


def _hostile_type(manifest: dict[str, Any]) -> None:
    manifest["tables"][0]["schemas"][0][0]["type"] = "BIGINT) AS x, (SELECT 1"


def _hostile_table(manifest: dict[str, Any]) -> None:
    manifest["tables"][0]["name"] = 'a."; DROP'


def _huge_world(manifest: dict[str, Any]) -> None:
    manifest["world_size"] = 1 << 40


def _no_time(manifest: dict[str, Any]) -> None:
    del manifest["recorded_at"]


@pytest.mark.parametrize(
    "edit",
    [
        _drop_first_rank, _twice, _of_another_node, _no_such_columns, _escape, _absolute, _hostile_type, _hostile_table,
        _huge_world, _no_time,
    ],
)  # fmt: skip
def test_a_manifest_that_contradicts_itself_or_reaches_out_is_refused(copy: Path, edit: Callable[..., None]) -> None:
    change(copy, edit)
    with pytest.raises(BadRequest) as caught:
        read_manifest(copy)
    assert "job.json" in caught.value.detail
    assert caught.value.hint


def test_a_link_out_of_the_bundle_is_not_followed(copy: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.parquet"
    (copy / FILE).rename(outside)
    (copy / FILE).symlink_to(outside)
    with Offline(copy) as offline, pytest.raises(BadRequest) as caught:
        offline.load()
    assert "link" in caught.value.detail


def test_a_newer_format_asks_for_a_newer_muster(copy: Path) -> None:
    change(copy, lambda m: m.update(format=99))
    with pytest.raises(BadRequest) as caught:
        read_manifest(copy)
    assert "newer Muster" in str(caught.value.hint)


def test_what_is_unknown_in_a_manifest_does_no_harm(copy: Path) -> None:
    change(copy, lambda m: (m.update(colour="blue"), m["ranks"][0].update(mood="good")))
    assert read_manifest(copy).world_size == 4


def _empty(path: Path) -> None:
    path.mkdir()


def _half(path: Path) -> None:
    path.mkdir()
    (path / "job.json").write_text('{"format": 1, "ki')


def _list(path: Path) -> None:
    path.mkdir()
    (path / "job.json").write_text("[]")


def _rings(path: Path) -> None:
    path.mkdir()
    (path / "job.json").write_text('{"format": 1, "kind": "rings", "job": "j"}')


@pytest.mark.parametrize(
    ("make", "hint"),
    [(lambda p: None, "muster record"), (_empty, "muster record"), (_half, "Copy"), (_list, "muster record"),
     (_rings, "muster import")],
    ids=["absent", "empty", "half a manifest", "no object", "ring files"],
)  # fmt: skip
def test_what_is_no_bundle_says_how_to_make_one(tmp_path: Path, make: Callable[[Path], None], hint: str) -> None:
    make(tmp_path / "b")
    with pytest.raises((BadRequest, NotFound)) as caught:
        Offline(tmp_path / "b")
    assert hint in str(caught.value.hint)


def test_a_file_with_other_columns_than_the_manifest_says_is_refused(copy: Path) -> None:
    rows = pq.read_table(copy / FILE).append_column("extra", pa.array([1] * 20))
    size = write_table(rows, copy / FILE)
    change(copy, lambda m: [f.update(bytes=size) for t in m["tables"] for f in t.get("files", []) if f["path"] == FILE])
    with Offline(copy) as offline, pytest.raises(BadRequest) as caught:
        offline.load()
    assert "extra" in caught.value.detail


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2]]),
        pa.array([{"a": 1}]),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([1], pa.float16()),
        pa.array([1], pa.duration("s")),
    ],
    ids=["list", "struct", "map", "half float", "duration"],
)
def test_exotic_types_are_refused_by_the_name_of_the_column(tmp_path: Path, column: pa.Array[Any]) -> None:
    pq.write_table(pa.table({"rank": [0], "odd": column}), tmp_path / "f.parquet")
    with pytest.raises(BadRequest) as caught:
        read_table(tmp_path / "f.parquet")
    assert "'odd'" in caught.value.detail
    assert caught.value.hint


def test_texts_kept_as_dictionaries_are_texts(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode()}), tmp_path / "f.parquet")
    found = read_table(tmp_path / "f.parquet")
    assert found.schema.field("a").type == pa.string()
    assert found.column("a").to_pylist() == ["x", "y", "x"]


@pytest.mark.parametrize("limits", [Limits(rows=10), Limits(file_bytes=100), Limits(table_bytes=10_000)])
def test_small_files_that_grow_large_are_stopped(tmp_path: Path, limits: Limits) -> None:
    pq.write_table(pa.table({"a": pa.array(["x" * 100] * 100_000)}), tmp_path / "f.parquet", compression="zstd")
    with pytest.raises(TooLarge) as caught:
        read_table(tmp_path / "f.parquet", limits)
    assert caught.value.hint


def test_a_bundle_that_does_not_fit_in_memory_is_stopped(bundle: Path) -> None:
    with Offline(bundle, limits=Limits(total_bytes=10_000)) as offline, pytest.raises(TooLarge) as caught:
        offline.load()
    assert caught.value.hint


def test_random_damage_is_an_error_of_ours_or_no_difference(copy: Path) -> None:
    path = copy / FILE
    whole = path.read_bytes()
    rows = read_table(path)
    for place in range(0, len(whole), 997):
        raw = bytearray(whole)
        raw[place] ^= 0x5A
        path.write_bytes(bytes(raw))
        with contextlib.suppress(MusterError):  # a column that changed its name is held against the manifest's
            assert _as(read_table(path), rows.schema, path).equals(rows), place
