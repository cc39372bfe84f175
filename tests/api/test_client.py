"""The typed client, synchronous and asynchronous, against a gateway that answers in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from api.conftest import World
from muster.client import AsyncClient, Client, RemoteError
from muster.errors import DiagnosisNotFound, JobNotFound, NotReady, ParameterError, ShardUnreachable, SqlSyntax

SQL = "SELECT _rank, count(*) AS n FROM python.torch_step_timing WHERE _rank >= $r GROUP BY 1 ORDER BY 1"


@pytest.fixture
def client(job: World) -> Client:
    made = Client("http://127.0.0.1:8700", "a-token")
    made._http = job.client
    return made


@pytest.fixture
async def later(job: World) -> AsyncIterator[AsyncClient]:
    made = AsyncClient("http://127.0.0.1:8700")
    await made.aclose()
    made._http = httpx.AsyncClient(transport=httpx.ASGITransport(job.app), base_url="http://127.0.0.1:8700")
    async with made:
        yield made


def answering(status: int, content: bytes, kind: str) -> Client:
    made = Client("http://127.0.0.1:8700")
    made.close()
    page = httpx.MockTransport(lambda _: httpx.Response(status, content=content, headers={"Content-Type": kind}))
    made._http = httpx.Client(transport=page, base_url="http://127.0.0.1:8700")
    return made


def test_health_is_read_and_its_parameters_are_sent(client: Client) -> None:
    found = client.health("j", diagnosis=["job_health"], params={"step_window": 50}, deadline=5, min_coverage=0.5)
    assert (found.http_status, found.status, found.phase, found.ranks) == (200, "pass", "running", ())
    assert found.complete
    assert found.body["parameters"]["job_health"]["step_window"] == 50


def test_a_failing_job_is_an_answer_and_no_error(job: World, client: Client) -> None:
    job.silent |= {"n0", "n1"}
    found = client.health("j")
    assert (found.http_status, found.status, found.complete) == (503, "unknown", False)


def test_rows_come_by_column_name(client: Client) -> None:
    found = client.query("j", SQL, {"r": 2}, max_rows=10)
    assert found.dicts() == [{"_rank": 2, "n": 200}, {"_rank": 3, "n": 200}]
    assert found.coverage["complete"]


def test_everything_else_is_read_as_it_is(client: Client) -> None:
    assert [j["job"] for j in client.jobs()] == ["j"]
    assert client.job("j")["world_size"] == 4
    assert [n["node"] for n in client.nodes("j")] == ["n0", "n1"]
    assert "job_health" in {q["id"] for q in client.queries()}
    assert "python.torch_step_timing" in {t["table"] for t in client.tables("j")}
    assert client.explain("j", "SELECT count(*) FROM python.torch_step_timing")["plan"]["waves"]
    status, text = client.health_text("j")
    assert status == "pass"
    assert "4 of 4 ranks answered" in text


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda c: c.health("nope"), JobNotFound),
        (lambda c: c.health("j", diagnosis="nope"), DiagnosisNotFound),
        (lambda c: c.health("j", params={"nope": 1}), ParameterError),
        (lambda c: c.query("j", "SELECT (("), SqlSyntax),
    ],
)
def test_what_the_gateway_refuses_is_raised_as_its_kind(
    client: Client, call: Callable[[Client], Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind) as error:
        call(client)
    assert getattr(error.value, "hint", None)


@pytest.mark.anyio
async def test_the_asynchronous_client_does_the_same(later: AsyncClient) -> None:
    assert (await later.health("j")).status == "pass"
    assert (await later.query("j", SQL, {"r": 3})).dicts() == [{"_rank": 3, "n": 200}]
    assert [j["job"] for j in await later.jobs()] == ["j"]
    assert [n["node"] for n in await later.nodes("j")] == ["n0", "n1"]
    assert (await later.explain("j", "SELECT count(*) FROM python.torch_step_timing"))["plan"]
    with pytest.raises(JobNotFound):
        await later.job("nope")


@pytest.mark.parametrize(
    ("status", "content", "kind"),
    [
        (503, b"<h1>busy</h1>", "text/html"),
        (502, b"", "text/plain"),
        (200, b"<h1>welcome</h1>", "text/html"),
        (404, b'{"error": "no"}', "application/json"),
    ],
)
def test_a_page_of_something_else_is_not_taken_for_a_gateway(status: int, content: bytes, kind: str) -> None:
    client = answering(status, content, kind)
    for call in (lambda: client.health("j"), client.jobs, lambda: client.query("j", "SELECT 1")):
        with pytest.raises(NotReady, match="no gateway of Muster"):
            call()


def test_an_error_of_a_newer_gateway_keeps_its_text_and_members() -> None:
    body = b'{"code": "of_tomorrow", "detail": "It is new.", "hint": "Wait.", "position": {"line": 1, "column": 2}, "x": 3}'
    with pytest.raises(RemoteError) as error:
        answering(418, body, "application/problem+json").jobs()
    found = error.value
    assert (found.detail, found.hint, found.position, found.extra["x"]) == ("It is new.", "Wait.", (1, 2), 3)


def test_nobody_there_is_said_with_what_to_do() -> None:
    with Client("http://127.0.0.1:9", timeout=2) as client, pytest.raises(ShardUnreachable) as error:
        client.jobs()
    assert "muster gateway" in str(error.value.hint)
