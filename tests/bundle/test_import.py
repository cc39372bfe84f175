"""What others left behind becomes a bundle that answers as the original did."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bundle.live import LiveJob, essence, sorted_rows
from muster.bundle.convert import from_tables
from muster.bundle.importing import import_bundle, kind_of
from muster.bundle.offline import Offline
from muster.errors import BadRequest, Conflict, NotFound
from muster.probe.bundle import write_bundle

DATA = Path(__file__).parents[3] / "shared/data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the public data sets are not in {DATA}")
TABLES = ("python.comm_collective", "python.torch_step_timing", "python.trace_event", "my.scores")


def left_by_run(job: LiveJob, node: str, out: Path, ended: float | None = None) -> Path:
    """What `muster run` leaves on a node."""
    found = write_bundle("j", [job.directory / node], out / node, ["train"], 1, 0.0, ended or time.time())
    assert found is not None
    return found


def test_ring_files_of_two_nodes_answer_as_their_agents_did(ended: LiveJob, tmp_path: Path) -> None:
    left = [left_by_run(ended, n, tmp_path) for n in ("n0", "n1")]
    manifest = import_bundle(left, tmp_path / "b")
    assert manifest.complete, manifest.notes
    assert (manifest.job, manifest.world_size, manifest.source.kind) == ("j", 4, "rings")
    with ended.client() as live, Offline(tmp_path / "b") as offline:
        for table in TABLES:
            sql = f"SELECT * EXCLUDE (_addr) FROM {table}"
            here, there = (c.query("j", sql) for c in (offline, live))
            assert here.columns == there.columns
            assert sorted_rows(here.rows) == sorted_rows(there.rows), table
        here, there = (c.health("j", deadline=60) for c in (offline, live))
        assert essence(here.body) == essence(there.body)


def test_ring_files_are_seen_as_of_when_they_were_copied(tmp_path: Path) -> None:
    job = LiveJob(tmp_path / "live", 2)
    try:
        job.rank("n0", 0, then="wait").kill()
        job.rank("n0", 1, then="sleep")
        ended = time.time() + 100.0
        left = left_by_run(job, "n0", tmp_path, ended)
    finally:
        job.close()
    import_bundle([left], tmp_path / "b")
    with Offline(tmp_path / "b") as offline:
        rows = offline.query(
            None,
            "SELECT _rank, status, age_s, inflight_op, inflight_age_s, exit_kind, as_of_ns FROM process.rank ORDER BY 1",
        ).rows
        exits = offline.query(None, "SELECT _rank, kind FROM process.exit").rows
        assert offline.now == datetime.fromtimestamp(round(ended, 6), UTC).replace(microsecond=offline.now.microsecond)
    assert [r[1] for r in rows] == ["dead", "running"]
    assert all(95 < r[2] < 130 for r in rows), rows
    assert [r[3] for r in rows] == ["all_reduce", None]
    assert 95 < rows[0][4] < 130
    assert [r[5] for r in rows] == [None, None]
    assert exits == [[0, "vanished"]]
    assert len({r[6] for r in rows}) == 1


def test_a_rank_whose_end_nobody_saw_is_not_named_as_the_first_to_die(tmp_path: Path) -> None:
    job = LiveJob(tmp_path / "live", 2)
    try:
        job.rank("n0", 0, then="wait").kill()  # as a launcher does when another rank has failed
        failed = job.rank("n0", 1, then="raise")
        failed.wait(30)
        left = left_by_run(job, "n0", tmp_path)
    finally:
        job.close()
    import_bundle([left], tmp_path / "b")
    with Offline(tmp_path / "b") as offline:
        report = offline.health()
        exits = offline.query(None, "SELECT _rank, kind, ts IS NULL AS unseen FROM process.exit ORDER BY 1").rows
    assert report.status == "fail"
    assert 0 not in report.ranks
    assert "on purpose" in report.summary
    assert exits == [[0, "vanished", True], [1, "exception", False]]


def test_ring_files_that_are_not_whole_or_not_of_one_job_are_refused(ended: LiveJob, tmp_path: Path) -> None:
    left = left_by_run(ended, "n0", tmp_path)
    with pytest.raises(BadRequest, match="same node"):
        import_bundle([left, left], tmp_path / "b")
    text = (left / "job.json").read_text()
    (left / "job.json").write_text(text.replace('"job": "j"', '"job": "k"'))
    with pytest.raises(BadRequest, match="several jobs"):
        import_bundle([left, left_by_run(ended, "n1", tmp_path)], tmp_path / "b")
    (left / "rings" / "rank-1").rename(left / "gone")
    with pytest.raises(BadRequest, match="ranks \\[1\\]"):
        import_bundle([left], tmp_path / "b")
    (left / "job.json").write_text(text.replace('"ended"', '"ending"'))
    with pytest.raises(BadRequest) as caught:
        import_bundle([left], tmp_path / "b")
    assert caught.value.hint
    assert not (tmp_path / "b").exists()


def timing(rank: int, steps: int = 3, **more: Any) -> pa.Table:
    return pa.table(
        {
            "rank": [rank] * steps,
            "world_size": [4] * steps,
            "global_step": list(range(steps)),
            "step_duration_sec": [0.5 + rank] * steps,
            "end_ns": [1_700_000_000_000_000_000 + i for i in range(steps)],
            **{k: [v] * steps for k, v in more.items()},
        }
    )


@pytest.mark.parametrize("layout", ["one file", "a directory", "by rank without the column"])
def test_parquet_files_named_after_tables_are_a_job(tmp_path: Path, layout: str) -> None:
    source = tmp_path / "export"
    directory = source / "python.torch_step_timing"
    directory.mkdir(parents=True)
    if layout == "one file":
        directory.rmdir()
        pq.write_table(pa.concat_tables([timing(0), timing(2)]), source / "python.torch_step_timing.parquet")
    else:
        for rank in (0, 2):
            rows = timing(rank) if layout == "a directory" else timing(rank).drop_columns("rank")
            pq.write_table(rows, directory / f"rank-{rank}.parquet")
    manifest = import_bundle([source], tmp_path / "b", job="exported")
    assert (manifest.job, manifest.world_size) == ("exported", 4)
    assert manifest.recorded_at == datetime.fromtimestamp(1_700_000_000, UTC)
    with Offline(tmp_path / "b") as offline:
        found = offline.query(
            None, "SELECT _rank, avg(step_duration_sec) AS s FROM python.torch_step_timing GROUP BY 1 ORDER BY 1"
        )
        assert found.rows == [[0, 0.5], [2, 2.5]]
        assert found.coverage["states"] == {"answered": 2, "missing": 2}
        statuses = offline.query(None, "SELECT rank, status FROM cluster.nodes ORDER BY 1").rows
        assert statuses == [[0, "running"], [1, "missing"], [2, "running"], [3, "missing"]]


def test_a_bundles_own_files_without_the_manifest_are_parquet_too(bundle: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(bundle, tmp_path / "bare")
    (tmp_path / "bare" / "job.json").unlink()
    manifest = import_bundle([tmp_path / "bare"], tmp_path / "b", job="j")
    assert manifest.world_size == 4
    sql = "SELECT _rank, count(*), sum(bytes) FROM python.comm_collective GROUP BY 1 ORDER BY 1"
    hosts = "SELECT DISTINCT _rank, _host, _local_rank, _generation FROM python.comm_collective ORDER BY 1"
    with Offline(bundle) as before, Offline(tmp_path / "b") as after:
        assert before.query(None, hosts).rows == after.query(None, hosts).rows
        assert before.query(None, sql).rows == after.query(None, sql).rows


def test_the_roster_says_who_is_missing_and_where_ranks_are(tmp_path: Path) -> None:
    nodes = pa.table(
        {"rank": [0, 1, 2], "host": ["a", "a", "b"], "status": ["running", "finished", "missing"], "world_size": [3] * 3}
    )
    tables = {"python.torch_step_timing": pa.concat_tables([timing(0), timing(1)]), "cluster.nodes": nodes}
    tables["python.torch_step_timing"] = tables["python.torch_step_timing"].drop_columns("world_size")
    from_tables(tables, tmp_path / "b", job="j", kind="test")
    with Offline(tmp_path / "b") as offline:
        assert offline.query(None, "SELECT rank, host, status FROM cluster.nodes ORDER BY 1").rows == [
            [0, "a", "running"], [1, "a", "finished"], [2, "b", "missing"],
        ]  # fmt: skip
        assert offline.query(None, "SELECT DISTINCT _host FROM python.torch_step_timing").rows == [["a"]]


@pytest.mark.parametrize(
    ("name", "rows", "what"),
    [
        ("python.torch_step_timing", pa.table({"global_step": [1]}), "rank"),
        ("python.torch_step_timing", pa.table({"rank": [-1]}), "-1"),
        ("python.torch_step_timing", pa.table({"rank": [1 << 40]}), "rank"),
        ("python.torch_step_timing", pa.table({"rank": ["0"]}), "whole numbers"),
        ("python.torch_step_timing", pa.table({"rank": pa.array([None], pa.int64())}), "NULL"),
        ("python.torch_step_timing", pa.table({"rank": [0], "global_step": ["ten"]}), "global_step"),
        ("cluster.nodes", pa.table({"host": ["a"]}), "rank"),
        ("cluster.nodes", pa.table({"rank": [0, 0]}), "twice"),
        ("no_schema", pa.table({"rank": [0]}), "no_schema"),
    ],
)
def test_rows_that_nobody_owns_or_that_do_not_fit_are_refused(tmp_path: Path, name: str, rows: pa.Table, what: str) -> None:
    with pytest.raises(BadRequest) as caught:
        from_tables({name: rows}, tmp_path / "b", job="j", kind="test")
    assert what in caught.value.detail
    assert list(tmp_path.iterdir()) == []


def test_what_a_path_holds_is_seen(tmp_path: Path, bundle: Path, ended: LiveJob) -> None:
    assert kind_of(bundle) == "bundle"
    assert kind_of(left_by_run(ended, "n0", tmp_path)) == "rings"
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "_dump_0").write_bytes(b"x")
    assert kind_of(tmp_path / "dumps") == "flight_recorder"
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadRequest, match="nothing that is known"):
        kind_of(tmp_path / "empty")
    with pytest.raises(NotFound):
        kind_of(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BadRequest):
        kind_of(tmp_path / "notes.txt")


def test_an_import_does_not_write_over_what_is_there(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(Conflict):
        import_bundle([bundle], bundle)
    (tmp_path / "file").write_text("x")
    with pytest.raises(Conflict):
        import_bundle([bundle], tmp_path / "file")


@needs_data
def test_the_public_trace_of_a_slow_worker_names_it_offline(tmp_path: Path) -> None:
    manifest = import_bundle([DATA / "straggler/trace-AR.parquet"], tmp_path / "b")
    assert (manifest.job, manifest.world_size, manifest.source.kind) == ("trace-AR", 64, "trace")
    with Offline(tmp_path / "b") as offline:
        report = offline.health(diagnosis="persistent_straggler", params={"step_window": 10_000}, min_coverage=0.2)
        assert report.ranks == (0,)
        assert report.body["drain_candidates"] == []
    pq.write_table(timing(0), tmp_path / "trace-XY.parquet")
    with pytest.raises(NotFound, match="meta"):
        import_bundle([tmp_path / "trace-XY.parquet"], tmp_path / "c")


@needs_data
def test_a_folder_of_flight_recorder_dumps_is_a_job_with_their_tables(tmp_path: Path) -> None:
    pytest.importorskip("muster.bundle.flight_recorder")
    manifest = import_bundle([DATA / "flight_recorder/lock_gil_2nd"], tmp_path / "b", job="moe")
    assert (manifest.job, manifest.world_size, manifest.source.kind) == ("moe", 16, "flight_recorder")
    with Offline(tmp_path / "b") as offline:
        found = offline.query(None, "SELECT count(DISTINCT _rank) FROM python.torch_nccl_pg_status")
        assert found.rows == [[16]]
        assert found.coverage["complete"]
