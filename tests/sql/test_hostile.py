"""Nothing that reads, writes, waits, introspects or fills the memory gets through: at guard and planner, at the gateway's
HTTP and at an agent addressed directly. Harmless statements of the same shapes do."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, note
from starlette.testclient import TestClient

from agent.conftest import Served
from api.conftest import World
from muster.errors import MusterError
from muster.gateway.settings import GatewaySettings
from muster.model import ColumnType
from muster.probe.agent.app import AgentApp
from muster.sql.guard import SHARD, USER, Limits, guard
from muster.sql.plan import Catalogue, Statement
from muster.sql.planner import Planner
from muster.tables import PROCESS_RANK, REGISTRY, STEP_TIMING
from sql.hostile_grammar import (
    DISGUISES,
    EXPRESSION_PLACES,
    LISTED,
    RELATION_PLACES,
    SCALARS,
    STATEMENTS,
    TABLES,
    harmless_expressions,
    harmless_relations,
    hostile,
)

KNOWN = (STEP_TIMING.full_name, PROCESS_RANK.full_name)
CODES = {"sql_forbidden", "sql_syntax", "sql_bind", "too_large"}
HARMLESS = [*harmless_expressions(), *harmless_relations()]
BLOCKS = 12


def catalogue() -> Catalogue:
    return Catalogue({n: tuple(ColumnType(c.name, c.type) for c in REGISTRY[n].columns) for n in KNOWN})


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner()


@pytest.fixture(scope="module")
def gateway() -> Iterator[TestClient]:
    world = World(GatewaySettings(evaluate_s=0))
    with world.client:
        world.register()
        yield world.client


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    served = Served(Path(tmp_path_factory.mktemp("rings")))
    with TestClient(AgentApp(served.agent, None).build(), raise_server_exceptions=False) as client:
        yield client
    served.store.close()


def block(number: int) -> list[str]:
    """Every twelfth statement: a test per statement would take longer than the statement."""
    return list(LISTED[number::BLOCKS])


def test_the_grammar_grows_enough_and_leaves_nothing_out() -> None:
    assert len(set(LISTED)) >= 500
    text = "\n".join(LISTED).lower()
    for name, _ in SCALARS:
        assert name in text
    for name in (*TABLES, *STATEMENTS):
        assert name.lower() in text
    assert len(LISTED) > 2 * max(len(EXPRESSION_PLACES), len(RELATION_PLACES), len(DISGUISES))


@pytest.mark.parametrize("limits", [USER, SHARD], ids=["gateway", "agent"])
@pytest.mark.parametrize("number", range(BLOCKS))
def test_the_guard_refuses_every_listed_statement(number: int, limits: Limits) -> None:
    for sql in block(number):
        assert refusal_of_guard(sql, limits) in CODES, sql


def refusal_of_guard(sql: str, limits: Limits) -> str:
    try:
        guard(sql, tables=KNOWN, limits=limits)
    except MusterError as error:
        return error.code if error.status in (400, 413) else str(error.status)
    return "let through"


@pytest.mark.parametrize("number", range(BLOCKS))
def test_the_planner_refuses_every_listed_statement(number: int, planner: Planner) -> None:
    for sql in block(number):
        with pytest.raises(MusterError) as caught:
            planner.plan([Statement("q", sql)], catalogue())
        assert caught.value.code in CODES, sql


@pytest.mark.parametrize("path", ["query", "explain"])
@pytest.mark.parametrize("number", range(BLOCKS))
def test_the_gateway_refuses_every_listed_statement(number: int, path: str, gateway: TestClient) -> None:
    for sql in block(number):
        answer = gateway.post(f"/jobs/j/{path}", json={"sql": sql})
        assert answer.status_code in (400, 413), (sql, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] in CODES, (sql, answer.text)


@pytest.mark.parametrize("number", range(BLOCKS))
def test_an_agent_addressed_directly_refuses_every_listed_statement(number: int, agent: TestClient) -> None:
    """All statements in one request: each is answered by a stream of its own, without a column and with the problem."""
    texts = block(number)
    for start in range(0, len(texts), 20):
        refused(agent, texts[start : start + 20])


def refused(agent: TestClient, texts: list[str]) -> None:
    queries = [{"id": str(i), "sql": sql} for i, sql in enumerate(texts)]
    answer = agent.post("/v1/query", json={"queries": queries})
    assert answer.status_code == 200, answer.text
    source = io.BytesIO(answer.content)
    for sql in texts:
        table = pa.ipc.open_stream(source).read_all()
        meta = table.schema.metadata
        assert b"error" in meta, sql
        problem = orjson.loads(meta[b"error"])
        assert problem["code"] in CODES, (sql, problem)
        assert problem["status"] in (400, 413)
        assert (table.num_rows, table.num_columns) == (0, 0)
    assert source.tell() == len(answer.content)


@given(sql=hostile())
def test_what_the_grammar_draws_is_refused(sql: str, planner: Planner) -> None:
    note(sql)
    assert refusal_of_guard(sql, USER) in CODES
    assert refusal_of_guard(sql, SHARD) in CODES
    with pytest.raises(MusterError) as caught:
        planner.plan([Statement("q", sql)], catalogue())
    assert caught.value.code in CODES


@given(sql=hostile())
def test_what_the_grammar_draws_is_refused_over_http(sql: str, gateway: TestClient, agent: TestClient) -> None:
    note(sql)
    for path in ("query", "explain"):
        answer = gateway.post(f"/jobs/j/{path}", json={"sql": sql})
        assert answer.status_code in (400, 413), answer.text
        assert answer.json()["code"] in CODES
    refused(agent, [sql])


@pytest.mark.parametrize("sql", HARMLESS)
def test_harmless_statements_of_the_same_shapes_pass_the_guard(sql: str) -> None:
    written = guard(sql, tables=KNOWN).sql
    assert guard(written, tables=KNOWN, limits=SHARD).sql


def test_harmless_statements_of_the_same_shapes_are_answered(gateway: TestClient) -> None:
    """Not all of them make sense (a column that is not there, a sum of texts), but most do; none is forbidden."""
    codes = []
    for sql in HARMLESS:
        answer = gateway.post("/jobs/j/query", json={"sql": sql})
        assert answer.status_code < 500, (sql, answer.text)
        codes.append("answered" if answer.status_code == 200 else answer.json()["code"])
        assert codes[-1] not in ("sql_forbidden", "sql_syntax", "too_large"), (sql, answer.text)
    assert codes.count("answered") > 0.75 * len(HARMLESS), codes


def test_words_that_look_hostile_are_harmless_as_names_and_texts(gateway: TestClient) -> None:
    sql = (
        "WITH getenv AS (SELECT rank AS read_csv, 'COPY x TO y; -- getenv()' AS \"current_setting\""
        ' FROM python.torch_step_timing) SELECT getenv.read_csv AS attach, "current_setting" FROM getenv LIMIT 1'
    )
    assert gateway.post("/jobs/j/query", json={"sql": sql}).status_code == 200


@pytest.mark.parametrize(
    "name", ["user", "current_user", '"current_user"', "session_user", "current_role", '"current_catalog"']
)
def test_names_that_read_the_session_are_refused_but_as_columns_of_a_table(name: str) -> None:
    """The engine takes them for functions where no column has the name, in quotes too."""
    assert refusal_of_guard(f"SELECT {name}", USER) == "sql_forbidden"
    quoted = name if name.startswith('"') else f'"{name}"'
    assert guard(f"SELECT q.{quoted} FROM (SELECT 1 AS {quoted}) AS q").sql


CUT_MESSAGES = ("unhex({0})", "from_binary({0})", "({0})::BIT")


@pytest.mark.parametrize("call", CUT_MESSAGES)
def test_an_error_that_the_engine_cuts_within_a_character_is_the_statements(
    call: str, gateway: TestClient, agent: TestClient
) -> None:
    """The engine quotes the first byte of what it cannot convert, which is no text."""
    alone = f"SELECT {call.format(repr('é'))}"
    for sql in (alone, f"SELECT {call.format('chr((233 + rank)::INTEGER)')} FROM {STEP_TIMING.full_name}"):
        answer = gateway.post("/jobs/j/query", json={"sql": sql})
        assert (answer.status_code, answer.json()["code"]) == (422, "statement_failed"), answer.text
    answer = agent.post("/v1/query", json={"queries": [{"id": "a", "sql": alone}]})
    problem = orjson.loads(pa.ipc.open_stream(answer.content).schema.metadata[b"error"])
    assert (problem["code"], problem["status"]) == ("statement_failed", 422)
