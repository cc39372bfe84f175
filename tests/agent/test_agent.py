"""What an agent answers about real processes: alive, stopped, killed, ended, restarted."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from agent.conftest import Asked, Ranks, Serve, Served
from muster.errors import NotFound
from muster.probe.agent import lives, proc
from muster.probe.agent.snapshot import view_name
from muster.probe.recorder import Recorder
from muster.protocol import QueryRequest, RankRef, SubQuery
from probe.kit import make_recorder

SLOW = """SELECT count(*) FROM python.comm_collective a, python.comm_collective b, python.comm_collective d
WHERE (a.seq + b.seq * d.seq) % 7 = 3"""
"""Over 2,000 rows it takes far longer than any deadline here."""


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = make_recorder(tmp_path)
    yield made
    made.close()


def test_rows_are_fresh_at_query_time_and_carry_the_tags(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, steps=30)
    served = serve()
    (row,) = served.ask("SELECT count(*) AS n, max(global_step) AS s FROM python.torch_step_timing").rows()
    assert (row["n"], row["s"]) == (30, 30)
    ranks.start(1, steps=10)
    tags = "_rank, _local_rank, _host, _addr, _generation"
    rows = served.ask(f"SELECT {tags}, count(*) AS n FROM python.comm_collective GROUP BY ALL ORDER BY 1").rows()
    assert [(r["_rank"], r["_local_rank"], r["n"]) for r in rows] == [(0, 0, 30), (1, 1, 10)]
    assert rows[0]["_host"] == "n0"
    assert rows[0]["_addr"] == "http://127.0.0.1:1"
    assert rows[0]["_generation"].startswith("g")


def test_several_subqueries_have_a_stream_each_and_one_failure_does_not_lose_the_others(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0)
    found = serve().ask(
        "SELECT count(*) AS n FROM python.torch_step_timing",
        "SELECT CAST(op AS INTEGER) FROM python.comm_collective",
        "SELECT nonsense FROM python.comm_collective",
        "SELECT 1 FROM no.such",
        "SELECT count(*) AS n FROM python.comm_collective c",
    )
    assert list(found.tables) == ["q", "1", "2", "3", "4"]
    assert found.rows("q") == [{"n": 20}]
    assert found.error("1")["code"] == "statement_failed"
    assert found.error("2")["code"] == "sql_bind"
    assert found.error("3")["table"] == "no.such"
    assert found.rows("4") == [{"n": 20}]
    meta = found.meta["q"]
    assert (meta["rows"], meta["batches"], json.loads(meta["ranks"])) == ("1", "1", [0])
    assert float(meta["elapsed_ms"]) > 0
    assert int(meta["oldest_step"]) == 1


def test_a_hung_rank_shows_what_it_last_did_and_what_it_waits_in(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, then="hang")
    served = serve()
    time.sleep(0.5)
    state = served.state()
    assert (state["status"], state["state"]) == ("running", "S")
    assert (state["last_op"], state["last_seq"]) == ("all_reduce", 20)
    assert (state["inflight_op"], state["inflight_seq"]) == ("all_gather", 21)
    assert json.loads(state["inflight_ranks"]) == [0, 1]
    assert state["inflight_age_s"] >= 0.4
    assert state["age_s"] == pytest.approx(state["inflight_age_s"], abs=0.1)
    sql = "SELECT op, duration_ms, end_ns FROM python.comm_collective WHERE end_ns IS NULL"
    assert served.ask(sql).rows() == [{"op": "all_gather", "duration_ms": None, "end_ns": None}]


def test_a_rank_that_stops_while_it_is_looked_at_is_never_shown_as_dead(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, job="job")
    assert served.state()["status"] == "running"
    (life,) = served.store.lives
    look = life.directory.alive

    def stopped_meanwhile() -> bool:
        recorder.close()
        return look()

    monkeypatch.setattr(life.directory, "alive", stopped_meanwhile)
    monkeypatch.setattr(proc, "has_memory", lambda pid, start_ticks: False)
    assert served.state()["status"] == "finished"
    served.store.close()


def test_a_rank_whose_lock_could_not_be_read_for_a_while_is_alive_again(
    ranks: Ranks, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = ranks.start(0)
    served = serve()
    assert served.state()["status"] == "running"
    monkeypatch.setattr(lives, "_FINAL_S", -1.0)
    monkeypatch.setattr(proc, "has_memory", lambda pid, start_ticks: False)  # it is of another PID namespace
    with monkeypatch.context() as patched:
        patched.setattr(served.store.lives[0].directory, "alive", lambda: False)
        assert [served.state()["status"] for _ in range(2)] == ["dead", "dead"]
    state = served.state()
    assert (state["status"], state["exit_ns"]) == ("running", None)
    killed_ns = time.time_ns()
    process.kill()
    process.wait()
    assert served.state()["exit_ns"] >= killed_ns


def test_who_waits_for_a_peer_says_for_whom(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, then="recv")
    ranks.start(1, then="hang")
    served = serve()
    assert (served.state(0)["inflight_op"], served.state(0)["inflight_peer"]) == ("recv", 1)
    assert (served.state(1)["inflight_op"], served.state(1)["inflight_peer"]) == ("all_gather", None)


def test_an_operation_that_ends_while_it_is_read_is_shown_once_and_never_missed(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, then="loop")
    served = serve()
    sql = "SELECT count(*) AS n, count(DISTINCT seq) AS different, max(seq) AS newest FROM python.comm_collective"
    for _ in range(40):
        (row,) = served.ask(sql).rows()
        assert row["n"] == row["different"] == row["newest"], row


def test_a_stopped_process_has_state_t_and_its_age_grows(ranks: Ranks, serve: Serve) -> None:
    process = ranks.start(0)
    served = serve()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(0.3)
    first = served.state()
    time.sleep(0.3)
    second = served.state()
    assert (first["state"], first["status"]) == ("T", "running")
    assert second["age_s"] >= first["age_s"] + 0.25


def test_a_killed_process_is_dead_in_the_very_next_answer_with_its_signal(ranks: Ranks, serve: Serve) -> None:
    process = ranks.start(0)
    served = serve()
    assert served.state()["status"] == "running"
    before = time.time_ns()
    process.kill()
    process.wait()
    state = served.state()
    assert state["status"] == "dead"
    assert state["exit_kind"] in ("signal", "vanished")
    assert before <= state["exit_ns"] <= time.time_ns()
    (row,) = served.ask("SELECT kind, last_step FROM process.exit").rows()
    assert row == {"kind": state["exit_kind"], "last_step": 20}


def test_the_kernel_tells_which_signal_it_was_while_the_process_is_not_reaped(ranks: Ranks, serve: Serve) -> None:
    process = ranks.start(0)
    served = serve()
    served.state()
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    state = served.state()
    assert (state["exit_kind"], state["exit_signal"]) == ("signal", signal.SIGKILL)
    assert "SIGKILL" in state["exit_message"]


@pytest.mark.parametrize(
    ("then", "status", "kind", "text"),
    [
        ("end", "finished", "exit", None),
        ("raise", "dead", "exception", "broken on purpose"),
        ("exit3", "dead", "exit", None),
    ],
)
def test_how_a_process_ended_is_told_and_its_tables_still_answer(
    ranks: Ranks, serve: Serve, then: str, status: str, kind: str, text: str | None
) -> None:
    ranks.start(0, then=then).wait(10)
    served = serve()
    state = served.state()
    assert (state["status"], state["exit_kind"]) == (status, kind)
    assert text is None or text in state["exit_message"]
    if then == "exit3":
        assert state["exit_code"] == 3
    (row,) = served.ask("SELECT count(*) AS n FROM python.torch_step_timing").rows()
    assert row["n"] == 20


def test_a_rank_that_died_before_the_agent_came_ended_with_its_last_row(ranks: Ranks, serve: Serve) -> None:
    process = ranks.start(0)
    time.sleep(0.2)
    process.kill()
    process.wait()
    state = serve().state()
    assert state["status"] == "dead"
    assert state["exit_ns"] == state["last_row_ns"] > state["started_ns"]


def test_one_that_died_in_an_operation_before_the_agent_came_ended_after_that_began(ranks: Ranks, serve: Serve) -> None:
    process = ranks.start(0, then="hang")
    time.sleep(0.3)
    process.kill()
    process.wait()
    served = serve()
    (row,) = served.ask("SELECT max(start_ns) AS t FROM python.comm_collective WHERE end_ns IS NULL").rows()
    assert served.state()["exit_ns"] == row["t"]


@pytest.mark.parametrize("seen", [True, False])
def test_a_rank_that_stopped_recording_has_finished_also_once_its_process_has_ended(
    ranks: Ranks, serve: Serve, seen: bool
) -> None:
    process = ranks.start(0, then="stop")
    served = serve()
    if seen:
        state = served.state()
        assert (state["status"], state["exit_kind"], state["exit_message"]) == ("finished", "exit", "recording was stopped")
        assert state["exit_ns"] > state["started_ns"]
    process.terminate()
    process.wait()
    assert served.state()["status"] == "finished"
    assert served.ask("SELECT 1 FROM process.exit").rows() == []


def test_a_process_that_only_lost_its_lock_is_not_dead(ranks: Ranks, serve: Serve) -> None:
    process = ranks.start(0, then="lose-lock")
    served = serve()
    state = served.state()
    assert (state["status"], state["state"], state["exit_kind"]) == ("running", "S", None)
    process.kill()
    process.wait()
    assert served.state()["status"] == "dead"


def test_columns_that_ranks_declare_differently_are_united_and_what_is_left_out_is_said(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, steps=1)
    served = serve()
    served.agent.refresh()
    ranks.start(1, steps=1, then="other-columns")
    found = served.ask(
        "SELECT _rank, reward, episode, extra FROM my.metrics2 ORDER BY 1",
        "SELECT * FROM my.metrics",
        "SELECT count(*), max(extra) FROM my.metrics2",
        "SELECT * FROM my.metrics2",
    )
    assert found.rows() == [
        {"_rank": 0, "reward": 7, "episode": 1, "extra": None},
        {"_rank": 1, "reward": None, "episode": None, "extra": 0.5},
    ]
    (note,) = json.loads(found.meta["q"]["notes"])
    assert note == "my.metrics2.reward of rank 1 has type VARCHAR there, BIGINT is kept (NULL)"
    assert "notes" not in found.meta["1"]
    assert "notes" not in found.meta["2"]
    assert json.loads(found.meta["3"]["notes"]) == [note]
    assert served.agent.stats().store_errors == 1
    (table,) = [t for t in served.agent.node().tables if t.name == "metrics2"]
    assert [(c.name, c.type) for c in table.columns][-3:] == [
        ("reward", "BIGINT"),
        ("episode", "BIGINT"),
        ("extra", "DOUBLE"),
    ]


def test_a_request_under_way_still_answers_when_a_table_gains_a_column(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, steps=1)
    served = serve()
    served.agent.refresh()
    snapshot = served.store.snapshot(served.store.lives)
    ranks.start(1, steps=1, then="other-columns")
    served.agent.refresh()
    view = view_name("my.metrics2")
    assert snapshot.cursor.sql(f'SELECT reward FROM "{view}"').fetchall() == [(7,)]
    snapshot.close()


def test_custom_tables_answer_too(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0)
    served = serve()
    served.agent.node()
    assert served.ask("SELECT sum(reward) AS r, max(episode) AS e FROM my.metrics").rows() == [{"r": 105.0, "e": 20}]
    assert "my.metrics" in {f"{t.schema_}.{t.name}" for t in served.agent.node().tables}


def test_two_jobs_in_one_directory_do_not_see_each_other(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, job="a", steps=5)
    ranks.start(0, job="b", steps=7)
    for job, steps in (("a", 5), ("b", 7)):
        sql = "SELECT count(*) AS n FROM python.torch_step_timing"
        assert serve(job=job).ask(sql).rows() == [{"n": steps}]


def test_a_restart_is_a_generation_of_its_own_and_the_newest_counts(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, steps=9, then="end", generation="one").wait(10)
    served = serve()
    served.state()
    ranks.start(0, steps=4, generation="two")
    sql = "SELECT _generation AS g, count(*) AS n FROM python.torch_step_timing GROUP BY ALL"
    assert [(r["g"].split(".")[0], r["n"]) for r in served.ask(sql).rows()] == [("two", 4)]
    old = next(x.meta.generation for x in served.store.lives if x.meta and x.meta.generation.startswith("one"))
    (row,) = served.ask(sql, ranks=[RankRef(rank=0, generation=old)]).rows()
    assert row == {"g": old, "n": 9}


def test_only_the_ranks_asked_for_are_visible_and_unknown_ones_are_named(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0)
    ranks.start(1)
    served = serve()
    generation = next(r.generation for r in served.agent.node().ranks)
    assert generation is not None
    found = served.ask("SELECT DISTINCT _rank FROM process.rank", ranks=[RankRef(rank=1, generation=generation)])
    assert found.rows() == [{"_rank": 1}]
    with pytest.raises(NotFound) as error:
        served.ask("SELECT 1 FROM process.rank", ranks=[RankRef(rank=7, generation=generation)])
    assert error.value.extra["ranks"] == [7]
    some = [RankRef(rank=r, generation=generation) for r in (0, 7)]
    found = served.ask("SELECT DISTINCT _rank FROM process.rank", ranks=some)
    assert found.rows() == [{"_rank": 0}]
    assert json.loads(found.meta["q"]["ranks"]) == [0]
    assert json.loads(found.meta["q"]["missing"]) == [{"rank": 7, "generation": generation}]


def test_a_rank_answers_to_the_name_its_generation_had_before_it_was_final(recorder: Recorder, tmp_path: Path) -> None:
    served = Served(tmp_path, job="job")
    (before,) = [r.generation for r in served.agent.node().ranks]
    recorder.set_generation("final")
    assert before is not None
    for name in (before, "final"):
        sql = "SELECT _generation AS g FROM process.rank"
        assert served.ask(sql, ranks=[RankRef(rank=0, generation=name)]).rows() == [{"g": "final"}]
    served.store.close()


def test_memory_that_runs_out_costs_the_oldest_rows_and_not_the_answer(ranks: Ranks, serve: Serve) -> None:
    for rank in range(3):
        ranks.start(rank, steps=12_000, then="busy")
    served = serve(memory_limit="12MB")
    for _ in range(3):
        served.agent.refresh()
    assert len(served.ask("SELECT rank FROM process.rank").rows()) == 3
    stats = served.agent.stats()
    assert sum(stats.rows_expired.values()) > 0
    assert stats.store_errors > 0


def test_retention_keeps_the_newest_rows_and_counts_what_went(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, steps=1000)
    served = serve(rows_per_table=100)
    table = "python.torch_step_timing"
    (row,) = served.ask(f"SELECT count(*) AS n, min(global_step) AS a, max(global_step) AS z FROM {table}").rows()
    assert row == {"n": 100, "a": 901, "z": 1000}
    assert served.state()["oldest_global_step"] == 901
    assert served.agent.stats().rows_expired[0, table] == 900
    assert served.agent.stats().rows[0, table] == 100


def test_retention_bounds_bytes_too(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, steps=2000, then="busy")
    size = 64 << 10
    served = serve(bytes_per_table=size)
    c = "python.comm_collective"
    (row,) = served.ask(f"SELECT count(*) AS n, max(seq) AS newest FROM {c}").rows()
    assert 100 < row["n"] < 1000
    assert row["newest"] == 2000
    assert served.ask(f"SELECT * FROM {c}").tables["q"].nbytes < 3 * size
    stats = served.agent.stats()
    assert stats.rows[0, c] + stats.rows_expired[0, c] == 2000


def test_a_deadline_stops_the_work_and_the_next_subquery_is_answered(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, steps=2000)
    served = serve()
    served.state()
    started = time.monotonic()
    count = SubQuery(id="1", sql="SELECT count(*) AS n FROM python.comm_collective")
    queries = [SubQuery(id="q", sql=SLOW, deadline_ms=400), count]
    request = QueryRequest(queries=queries, deadline_ms=10_000)
    found = Asked(anyio.run(served.agent.answer, request, threading.Event()))
    assert time.monotonic() - started < 5
    assert found.error("q")["code"] == "deadline_exceeded"
    assert found.rows("1") == [{"n": 2000}]


def test_the_deadline_of_the_request_ends_all_of_its_subqueries(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, steps=2000)
    served = serve()
    served.state()
    started = time.monotonic()
    found = served.ask(SLOW, SLOW, deadline_ms=400)
    assert time.monotonic() - started < 5
    assert [found.error(i)["code"] for i in ("q", "1")] == ["deadline_exceeded"] * 2


def test_a_caller_that_goes_away_stops_the_work(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, steps=2000)
    served = serve()
    served.state()
    gone = threading.Event()
    threading.Timer(0.3, gone.set).start()
    started = time.monotonic()
    served.ask(SLOW, cancelled=gone, deadline_ms=60_000)
    assert time.monotonic() - started < 10


def test_budgets_are_refusals_and_never_cuts(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, steps=50)
    served = serve()
    for limits in ({"max_rows": 10}, {"max_bytes": 100}):
        found = served.ask("SELECT * FROM python.comm_collective", "SELECT 1 AS x", **limits)
        assert found.error()["code"] == "over_budget"
        assert found.tables["q"].num_columns == 0
        assert found.rows("1") == [{"x": 1}]


def test_an_answer_over_budget_is_never_made_in_full(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, steps=2000)
    served = serve()
    served.state()
    c = "python.comm_collective"
    before = pa.total_allocated_bytes()
    started = time.monotonic()
    error = served.ask(f"SELECT a.seq FROM {c} a, {c} b, {c} d", max_rows=1000, deadline_ms=60_000).error()
    assert error["code"] == "over_budget"
    assert time.monotonic() - started < 10
    assert pa.total_allocated_bytes() - before < 64 << 20


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT CAST(op AS INTEGER) FROM python.comm_collective", "statement_failed"),
        ("SELECT CAST(op || seq AS INTEGER) AS x FROM python.comm_collective ORDER BY x", "statement_failed"),
        ("SELECT bytes * 9223372036854775807 FROM python.comm_collective", "statement_failed"),
        ("SELECT nonsense FROM python.comm_collective", "sql_bind"),
        ("SELECT sum(op) FROM python.comm_collective", "sql_bind"),
    ],
)
def test_an_error_says_whose_it_is(ranks: Ranks, serve: Serve, sql: str, code: str) -> None:
    ranks.start(0)
    assert serve().ask(sql).error()["code"] == code


def test_a_column_may_be_named_with_its_schema(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0)
    sql = "SELECT max(python.comm_collective.seq) AS s FROM python.comm_collective WHERE comm_collective.seq < 15"
    assert serve().ask(sql).rows() == [{"s": 14}]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        'SELECT * FROM data."python.comm_collective"',
        "SELECT * FROM lives",
        'SELECT * FROM "v:process.rank"',
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM information_schema.tables",
        "ATTACH '/tmp/x.db'",
        "COPY process.rank TO '/tmp/x'",
        'DROP TABLE data."python.comm_collective"',
        "SELECT 1; SELECT 2",
        "SET threads = 4",
        "SELECT sleep_ms(1000) FROM process.rank",
        "SELECT * FROM query('SELECT 1')",
        "SELECT repeat('x', 1000000000) FROM process.rank",
    ],
)
def test_hostile_sql_addressed_to_the_agent_itself_is_refused(ranks: Ranks, serve: Serve, sql: str) -> None:
    ranks.start(0, steps=2)
    assert 400 <= serve().ask(sql).error()["status"] < 500


def test_a_damaged_ring_does_not_stop_the_agent(ranks: Ranks, serve: Serve) -> None:
    ranks.start(0, then="end").wait(10)
    ranks.start(1)
    (ring,) = (ranks.directory / "j" / "rank-0").glob("*/python.comm_collective.ring")
    ring.write_bytes(b"\xff" * 5000)
    (meta,) = (ranks.directory / "j" / "rank-0").glob("*/strings")
    meta.write_bytes(b"")
    served = serve()
    rows = served.ask("SELECT _rank, count(*) AS n FROM python.comm_collective GROUP BY 1 ORDER BY 1").rows()
    assert {r["_rank"]: r["n"] for r in rows}[1] == 20
    assert served.state(0)["status"] in ("finished", "dead")  # its last words may be among what was damaged
    ring.unlink()
    assert serve().state(1)["status"] == "running"


def test_cpu_use_is_sampled_from_outside(ranks: Ranks, serve: Serve) -> None:
    process = ranks.start(0)
    served = serve()
    served.state()
    served.agent.sample()
    time.sleep(0.2)
    served.agent.sample()
    rows = served.ask("SELECT scope, rss_kb, thread_count, wall_ns FROM cpu.utilization WHERE scope = 'process'").rows()
    assert len(rows) == 1
    assert rows[0]["rss_kb"] > 1000
    assert rows[0]["wall_ns"] > 100_000_000
    assert served.state()["rss_kb"] > 1000
    process.kill()
