"""Recording a live job: the bundle answers as the job did, and says what is not in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bundle.live import LiveJob, RecordLimits, essence, sorted_rows
from muster.bundle.offline import Offline
from muster.errors import BadRequest, Conflict, JobNotFound, ShardFailed, ShardUnreachable

TABLES = (
    "python.comm_collective",
    "python.torch_step_timing",
    "python.trace_event",
    "python.checkpoint",
    "process.exit",
    "my.scores",
)
QUERIES = (
    "SELECT count(*), sum(bytes), median(duration_ms), max(seq) FROM python.comm_collective",
    "SELECT _host, avg(step_duration_sec) AS a FROM python.torch_step_timing GROUP BY 1 ORDER BY 1",
    "SELECT _rank, score, tag FROM my.scores WHERE score > 2 ORDER BY score DESC, _rank LIMIT 7",
    "SELECT n.rank, n.status, n.host, n.group_rank, p.last_global_step FROM cluster.nodes AS n"
    " JOIN process.rank AS p ON p._rank = n.rank ORDER BY 1",
    "SELECT table_schema, table_name, count(*) FROM information_schema.tables GROUP BY ALL ORDER BY ALL",
)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LiveJob]:
    made = LiveJob(tmp_path / "live", 2)
    yield made
    made.close()


@pytest.mark.parametrize("through", ["gateway", "agents"])
def test_a_bundle_holds_the_rows_of_the_live_job(ended: LiveJob, tmp_path: Path, through: str) -> None:
    manifest = ended.record(tmp_path / "b", through=through)
    assert manifest.complete
    with ended.client() as live, Offline(tmp_path / "b") as offline:
        for table in TABLES:
            here, there = (c.query("j", f"SELECT * FROM {table}") for c in (offline, live))
            assert here.columns == there.columns
            assert sorted_rows(here.rows) == sorted_rows(there.rows), table
            assert here.coverage["complete"]


@pytest.mark.parametrize("sql", QUERIES)
def test_a_bundle_answers_as_the_live_job(ended: LiveJob, bundle: Path, sql: str) -> None:
    with ended.client() as live, Offline(bundle) as offline:
        here, there = offline.query(None, sql), live.query("j", sql)
    assert here.columns == there.columns
    assert len(here.rows) == len(there.rows) > 0
    for mine, theirs in zip(here.rows, there.rows, strict=True):
        # a sum of floats depends on the order of rows, which SQL leaves free
        assert mine == [pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for v in theirs]
    assert {k: v for k, v in here.coverage.items() if k != "as_of"} == {
        k: v for k, v in there.coverage.items() if k != "as_of"
    }


@pytest.mark.parametrize("through", ["gateway", "agents"])
def test_a_bundle_gives_the_verdict_of_the_live_job(ended: LiveJob, tmp_path: Path, through: str) -> None:
    ended.record(tmp_path / "b", through=through)
    with ended.client() as live, Offline(tmp_path / "b") as offline:
        here, there = (c.health("j", deadline=60) for c in (offline, live))
    assert here.http_status == there.http_status
    assert here.body.keys() == there.body.keys()
    assert essence(here.body) == essence(there.body)


def test_a_job_that_hangs_is_the_same_hang_in_the_bundle_for_ever(job: LiveJob, tmp_path: Path) -> None:
    job.rank("n0", 0, then="wait")
    job.rank("n1", 1, then="sleep")
    job.serve("n0")
    job.serve("n1")
    with job.client() as live:
        end = time.monotonic() + 60
        while live.health("j", deadline=60).status not in ("warn", "fail"):
            assert time.monotonic() < end, "the hang is not seen"
            time.sleep(1.0)
    job.record(tmp_path / "b")
    with Offline(tmp_path / "b") as offline:
        sql = "SELECT _rank, age_s, as_of_ns, inflight_op, inflight_age_s, status FROM process.rank ORDER BY 1"
        before = offline.query(None, sql).rows
        verdict = essence(offline.health().body)
    assert verdict["status"] in ("warn", "fail")
    assert [r[3] for r in before] == ["all_reduce", None]
    assert [r[5] for r in before] == ["running", "running"]
    time.sleep(2.0)
    with Offline(tmp_path / "b") as offline:
        assert offline.query(None, sql).rows == before
        assert essence(offline.health().body) == verdict
        (now,) = offline.query(None, "SELECT now() AS n FROM process.rank LIMIT 1").rows[0]
        assert now == offline.now.isoformat().replace("+00:00", "Z")
        as_of = offline.query(None, "SELECT 1 FROM process.rank").coverage["as_of"]
        assert as_of["max"] < (offline.now + timedelta(seconds=5)).isoformat()


@pytest.mark.parametrize("through", ["gateway", "agents"])
def test_a_job_that_moves_is_recorded_as_of_one_moment(job: LiveJob, tmp_path: Path, through: str) -> None:
    for rank in (0, 1):
        job.rank("n0", rank, then="loop")
    job.serve("n0")
    job.record(tmp_path / "b", through=through)
    with Offline(tmp_path / "b") as offline:
        late = offline.query(
            None,
            "SELECT count(*) FROM python.comm_collective AS c JOIN process.rank AS p ON p._rank = c._rank"
            " WHERE c.start_ns > (SELECT max(as_of_ns) FROM process.rank)",
        )
        rows = offline.query(None, "SELECT count(*) FROM python.comm_collective")
    assert late.rows == [[0]]
    assert rows.rows[0][0] > 40


def test_ranks_that_cannot_be_reached_are_missing_in_the_bundle_as_they_were_live(ended: LiveJob, tmp_path: Path) -> None:
    job = LiveJob(ended.directory, 4)
    try:
        job.serve("n0")
        job.serve("n1")
        job.agents[1].stop()
        manifest = job.record(tmp_path / "b")
        assert not manifest.complete
        assert any("ranks 2, 3" in n and "unreachable" in n for n in manifest.notes), manifest.notes
        with job.client() as live, Offline(tmp_path / "b") as offline:
            here, there = (c.health("j", deadline=60) for c in (offline, live))
            assert essence(here.body) == essence(there.body)
            assert here.http_status == there.http_status
            assert [m["state"] for m in here.body["coverage"]["missing"]] == ["unreachable", "unreachable"]
    finally:
        job.close()


def test_only_the_newest_rows_are_kept_where_that_was_asked_and_it_is_said(ended: LiveJob, tmp_path: Path) -> None:
    manifest = ended.record(tmp_path / "b", limits=RecordLimits(rows=5))
    assert not manifest.complete
    assert "ranks 0-3: python.torch_step_timing: only the newest 5 rows" in manifest.notes
    with Offline(tmp_path / "b") as offline:
        found = offline.query(
            None, "SELECT _rank, min(global_step), max(global_step) FROM python.torch_step_timing GROUP BY 1"
        )
        assert sorted(found.rows) == [[r, 16, 20] for r in range(4)]
        assert found.coverage["history"]["oldest_step"] == 16


def test_what_a_limit_left_out_is_a_rank_without_an_answer_and_never_an_empty_table(ended: LiveJob, tmp_path: Path) -> None:
    manifest = ended.record(tmp_path / "b", limits=RecordLimits(bytes=1))
    assert any("bytes was reached" in n for n in manifest.notes)
    with Offline(tmp_path / "b") as offline:
        assert offline.query(None, "SELECT count(*) FROM process.rank").rows == [[4]]
        found = offline.query(None, "SELECT count(*) FROM python.torch_step_timing")
        assert not found.coverage["complete"]
        assert found.coverage["states"]["failed"] >= 1
        assert "limit" in found.coverage["missing"][0]["reason"]
        steps = offline.health().body["steps"]
        assert [s["name"] for s in steps if not s["coverage"]["complete"]]


def test_only_named_tables_are_recorded_and_a_wrong_name_says_which_there_are(ended: LiveJob, tmp_path: Path) -> None:
    manifest = ended.record(tmp_path / "b", tables=["my.scores"])
    assert {t.name for t in manifest.tables} == {"my.scores", "process.rank"}
    with pytest.raises(BadRequest) as caught:
        ended.record(tmp_path / "c", tables=["my.score"])
    assert "my.scores" in str(caught.value.hint)
    assert not (tmp_path / "c").exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "b"]


def test_what_is_there_is_not_written_over(ended: LiveJob, bundle: Path) -> None:
    before = (bundle / "job.json").read_bytes()
    with pytest.raises(Conflict):
        ended.record(bundle)
    assert (bundle / "job.json").read_bytes() == before


def test_no_job_and_no_gateway_leave_nothing_behind(ended: LiveJob, tmp_path: Path) -> None:
    job = LiveJob(tmp_path / "live", 1)
    try:
        with pytest.raises(JobNotFound):
            job.record(tmp_path / "out" / "b")
        job.agents = []
        with pytest.raises(ShardUnreachable):
            job.record(tmp_path / "out" / "b", through="agents")
        url = job.url
    finally:
        job.close()
    job.url = url
    with pytest.raises(ShardUnreachable) as caught:
        job.record(tmp_path / "out" / "b")
    assert "muster gateway" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()


def test_only_rank_0_is_asked_where_only_it_is_wanted(ended: LiveJob, bundle: Path) -> None:
    sql = "SELECT _rank, count(*) FROM python.comm_collective GROUP BY 1"
    with ended.client() as live, Offline(bundle) as offline:
        here, there = (c.query("j", sql, use_global=False) for c in (offline, live))
    assert here.rows == there.rows == [[0, 20]]


def test_an_answer_over_less_than_was_asked_for_is_refused(ended: LiveJob, tmp_path: Path) -> None:
    ended.record(tmp_path / "b", limits=RecordLimits(bytes=1))
    with Offline(tmp_path / "b") as offline, pytest.raises(ShardFailed):
        offline.query(None, "SELECT count(*) FROM python.torch_step_timing", on_partial="fail")
