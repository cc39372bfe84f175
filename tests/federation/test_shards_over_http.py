"""What becomes of a query when shards are slow, dead, cut off, or send what they should not."""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import duckdb
import httpx
import pyarrow as pa
import pytest
from httpx_aiohttp import AiohttpTransport
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from federation.nodes_over_http import TABLE, Nodes, stream
from muster.errors import Busy, OverBudget, StatementFailed
from muster.federation.fanout import Budget, Gate
from muster.federation.merge import Merger
from muster.federation.service import Federation, StatementResult
from muster.federation.shards.agent import AgentShard
from muster.model import RankState
from muster.protocol import ARROW_STREAM
from muster.sql.plan import Statement
from muster.sql.planner import Planner

pytestmark = pytest.mark.anyio
SUMS = f"SELECT count(*) AS n, sum(tokens) AS tokens, max(global_step) AS step FROM {TABLE}"
Ask = Callable[..., Awaitable[StatementResult]]


@pytest.fixture
async def ask(nodes: Nodes) -> AsyncIterator[Ask]:
    """Run one statement over the nodes."""
    async with httpx.AsyncClient(transport=AiohttpTransport(), trust_env=False, follow_redirects=False) as client:
        mergers = {"diagnosis": Merger(memory_limit="256MB"), "adhoc": Merger(memory_limit="256MB")}
        federation = Federation(
            planner=Planner(),
            shards=lambda info: AgentShard(info, client),
            mergers=mergers,  # type: ignore[arg-type]
            at_once={"diagnosis": 4, "adhoc": 4},
        )

        async def run(
            sql: str, *, deadline_s: float = 5.0, world_size: int = 6, budget: Budget | None = None
        ) -> StatementResult:
            view = nodes.view(world_size)
            found = await federation.run([Statement("q", sql)], view, deadline_s=deadline_s, budget=budget)
            return found["q"]

        yield run
        for merger in mergers.values():
            merger.close()


def oracle(nodes: Nodes, sql: str, *, without: frozenset[int] = frozenset()) -> list[tuple[object, ...]]:
    """The answer of one DuckDB with the rows of all ranks but some."""
    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA python")
    connection.register("everything", nodes.whole())
    connection.execute(
        f"CREATE TABLE {TABLE} AS SELECT * FROM everything WHERE NOT list_contains($gone, _rank)", {"gone": list(without)}
    )
    return connection.execute(sql).fetchall()


def tuples(result: StatementResult) -> list[tuple[object, ...]]:
    assert result.error is None, result.error
    assert result.table is not None
    connection = duckdb.connect()
    connection.register("found", result.table)
    return connection.execute("SELECT * FROM found").fetchall()


QUERIES = [
    SUMS,
    f"SELECT _rank, median(step_duration_sec) AS m FROM {TABLE} GROUP BY _rank ORDER BY 1",
    f"SELECT max(m) / min(m) AS ratio FROM (SELECT _rank, max(tokens) AS m FROM {TABLE} GROUP BY _rank) t",
    f"SELECT global_step, count(*) AS n, max(tokens) FROM {TABLE}"
    f" WHERE global_step > (SELECT max(global_step) - 5 FROM {TABLE}) GROUP BY 1 ORDER BY 1",
    f"SELECT _host, count(loss) FROM {TABLE} GROUP BY 1 ORDER BY 1",
]


@pytest.mark.parametrize("sql", QUERIES)
async def test_the_answer_is_that_of_one_duckdb(nodes: Nodes, ask: Ask, sql: str) -> None:
    result = await ask(sql)
    assert tuples(result) == oracle(nodes, sql)
    assert result.coverage.complete
    assert dict(result.coverage.states) == {RankState.ANSWERED: 6}


@pytest.mark.parametrize("sql", QUERIES)
async def test_without_one_node_it_is_that_of_the_others_and_coverage_says_so(nodes: Nodes, ask: Ask, sql: str) -> None:
    nodes.all[1].stop()
    result = await ask(sql)
    assert tuples(result) == oracle(nodes, sql, without=frozenset({2, 3}))
    assert not result.coverage.complete
    assert [(m.rank, m.state, m.host) for m in result.coverage.missing] == [
        (2, RankState.UNREACHABLE, "n1"),
        (3, RankState.UNREACHABLE, "n1"),
    ]


async def test_one_request_for_each_shard_and_wave(nodes: Nodes, ask: Ask) -> None:
    result = await ask(QUERIES[3])
    assert result.waves == 2
    assert [n.requests for n in nodes.all] == [2, 2, 2]


async def test_an_expected_rank_that_never_came_is_missing(nodes: Nodes, ask: Ask) -> None:
    result = await ask(SUMS, world_size=8)
    assert {(m.rank, m.state) for m in result.coverage.missing} == {(6, RankState.MISSING), (7, RankState.MISSING)}
    assert sum(result.coverage.states.values()) == 8


async def test_a_slow_shard_times_out_within_the_deadline_and_the_others_count(nodes: Nodes, ask: Ask) -> None:
    nodes.all[0].misbehave = lambda request, body: 5.0
    started = time.monotonic()
    result = await ask(SUMS, deadline_s=1.5)
    assert time.monotonic() - started < 2.5
    assert tuples(result) == oracle(nodes, SUMS, without=frozenset({0, 1}))
    assert {m.state for m in result.coverage.missing} == {RankState.TIMED_OUT}


def _wrong_id(request: Request, body: bytes) -> Response:
    return _rewritten(body, {"id": "another"})


def _rewritten(body: bytes, meta: dict[str, str]) -> Response:
    table = pa.ipc.open_stream(io.BytesIO(body)).read_all()
    old = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
    return Response(stream(table, old | meta), media_type=ARROW_STREAM)


def _cut(request: Request, body: bytes) -> Response:
    return Response(body[: len(body) // 2], media_type=ARROW_STREAM)


def _nothing(request: Request, body: bytes) -> Response:
    return Response(b"", media_type=ARROW_STREAM)


def _garbage(request: Request, body: bytes) -> Response:
    return Response(b"\x00" * 4096, media_type=ARROW_STREAM)


def _html(request: Request, body: bytes) -> Response:
    return Response("<html>login</html>", media_type="text/html")


def _server_error(request: Request, body: bytes) -> Response:
    return Response("boom", status_code=500)


def _redirect(request: Request, body: bytes) -> Response:
    return RedirectResponse("http://127.0.0.1:1/v1/query")


def _twice(request: Request, body: bytes) -> Response:
    return Response(body + body, media_type=ARROW_STREAM)


def _other_schema(request: Request, body: bytes) -> Response:
    return Response(stream(pa.table({"x": [1]}), _meta(body, 1)), media_type=ARROW_STREAM)


def _more_rows_than_said(request: Request, body: bytes) -> Response:
    return _rewritten(body, {"rows": "0"})


def _compressed(request: Request, body: bytes) -> Response:
    table = pa.ipc.open_stream(io.BytesIO(body)).read_all()
    meta = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
    return Response(stream(table, meta, compression="zstd"), media_type=ARROW_STREAM)


def _dictionary(request: Request, body: bytes) -> Response:
    table = pa.ipc.open_stream(io.BytesIO(body)).read_all()
    first = table.column_names[0]
    coded = table.set_column(0, first, table.column(0).cast(pa.string()).combine_chunks().dictionary_encode())
    return Response(stream(coded, _meta(body, coded.num_rows)), media_type=ARROW_STREAM)


def _run_ends(request: Request, body: bytes) -> Response:
    ends = pa.RunEndEncodedArray.from_arrays(pa.array([2**31 - 1], pa.int32()), pa.array([1], pa.int64()))
    return Response(stream(pa.table({"n": ends}), _meta(body, 2**31 - 1)), media_type=ARROW_STREAM)


def _meta(body: bytes, count: int) -> dict[str, str]:
    old = pa.ipc.open_stream(io.BytesIO(body)).schema.metadata
    return {k.decode(): v.decode() for k, v in old.items()} | {"rows": str(count), "batches": "1"}


@pytest.mark.parametrize(
    "misbehave",
    [
        _wrong_id, _cut, _nothing, _garbage, _html, _server_error, _redirect, _twice, _other_schema, _more_rows_than_said,
        _compressed, _dictionary, _run_ends,
    ],
)  # fmt: skip
async def test_an_answer_that_cannot_be_believed_is_a_failed_shard_and_the_others_count(
    nodes: Nodes, ask: Ask, misbehave: Callable[[Request, bytes], Response]
) -> None:
    nodes.all[2].misbehave = misbehave
    result = await ask(SUMS)
    assert tuples(result) == oracle(nodes, SUMS, without=frozenset({4, 5}))
    assert [(m.rank, m.state) for m in result.coverage.missing] == [(4, RankState.FAILED), (5, RankState.FAILED)]
    assert all(m.reason for m in result.coverage.missing)


async def test_a_shard_that_is_busy_once_is_asked_again(nodes: Nodes, ask: Ask) -> None:
    answers = iter([Response("busy", status_code=503)])
    nodes.all[0].misbehave = lambda request, body: next(answers, 0.0)
    result = await ask(SUMS)
    assert result.coverage.complete
    assert nodes.all[0].requests == 2


async def test_an_error_of_the_statement_is_the_users_and_not_a_failed_rank(nodes: Nodes, ask: Ask) -> None:
    result = await ask(f"SELECT sum(CAST(_host AS INTEGER)) FROM {TABLE}")
    assert isinstance(result.error, StatementFailed)
    assert result.coverage.answered == 0 or result.coverage.complete is False


async def test_too_many_rows_are_refused_and_never_cut(nodes: Nodes, ask: Ask) -> None:
    for node in nodes.all:
        node.misbehave = None
    result = await ask(f"SELECT * FROM {TABLE}", budget=Budget(rows=1_000_000, shard_bytes=1 << 20, total_bytes=1 << 20))
    assert result.error is None
    with pytest.raises(OverBudget):
        await ask(f"SELECT * FROM {TABLE}", budget=Budget(total_bytes=1000))


async def test_a_table_that_no_shard_has_is_empty_and_coverage_says_no_table(nodes: Nodes, ask: Ask) -> None:
    result = await ask("SELECT count(*) FROM python.comm_collective")
    assert tuples(result) == [(0,)]
    assert dict(result.coverage.states) == {RankState.NO_TABLE: 6}
    assert [n.requests for n in nodes.all] == [0, 0, 0]


async def test_a_filter_on_a_rank_asks_only_its_shard(nodes: Nodes, ask: Ask) -> None:
    sql = f"SELECT count(*), min(tokens) FROM {TABLE} WHERE _rank = 3"
    result = await ask(sql)
    assert tuples(result) == oracle(nodes, sql)
    assert [n.requests for n in nodes.all] == [0, 1, 0]
    assert result.coverage.states[RankState.PRUNED] == 5
    assert result.coverage.complete


async def test_history_is_what_all_shards_still_hold(nodes: Nodes, ask: Ask) -> None:
    nodes.all[1].misbehave = lambda request, body: _rewritten(body, {"oldest_step": "17", "rows_lost": "4"})
    result = await ask(SUMS)
    assert (result.coverage.history.oldest_step, result.coverage.history.rows_lost) == (17, 4)


async def test_the_gate_makes_others_wait_and_refuses_them_in_time() -> None:
    gate = Gate(at_once=1)
    async with gate.passed(0.1):
        with pytest.raises(Busy):
            async with gate.passed(0.1):
                pass
    async with gate.passed(0.1):
        pass
