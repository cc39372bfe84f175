"""The HTTP face of the agent: `GET /v1/node`, `POST /v1/query`, `GET /livez`, `GET /metrics`."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Awaitable, Callable, Iterator

import anyio
import anyio.to_thread
import orjson
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from muster.errors import BadRequest, Busy, Internal, MusterError, NotFound, TooLarge, Unauthorized
from muster.probe.agent.agent import Agent
from muster.protocol import ARROW_STREAM, MAX_BODY_BYTES, QueryRequest

MAX_REQUESTS = 8
_PROBLEM = "application/problem+json"
Handler = Callable[[Request], Awaitable[Response]]


class AgentApp:
    """Routes; what they do is `Agent`'s."""

    def __init__(self, agent: Agent, token: str | None) -> None:
        self._agent = agent
        self._token = token
        self._running = 0
        self._metrics = CollectorRegistry()
        self._metrics.register(_Metrics(agent))

    def build(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/livez", self._livez),
                Route("/metrics", self._guarded(self._get_metrics)),
                Route("/v1/node", self._guarded(self._get_node)),
                Route("/v1/query", self._guarded(self._post_query), methods=["POST"]),
            ],
            exception_handlers={
                MusterError: _on_error,
                HTTPException: _on_http_error,
                Exception: _on_bug,
            },
        )

    def _guarded(self, handler: Handler) -> Handler:
        async def check(request: Request) -> Response:
            if self._token is not None:
                given = request.headers.get("authorization", "")
                if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                    raise Unauthorized("The agent needs its token.", hint="Send Authorization: Bearer <serve_token>.")
            return await handler(request)

        return check

    async def _livez(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _get_metrics(self, request: Request) -> Response:
        text = await anyio.to_thread.run_sync(generate_latest, self._metrics)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _get_node(self, request: Request) -> Response:
        info = await anyio.to_thread.run_sync(self._agent.node)
        return Response(info.model_dump_json(by_alias=True), media_type="application/json")

    async def _post_query(self, request: Request) -> Response:
        wanted = await _read_query(request)
        if self._running >= MAX_REQUESTS:
            raise Busy(f"{MAX_REQUESTS} requests are under way.", hint="Ask again in a moment.")
        self._running += 1
        cancelled = threading.Event()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_watch, request, cancelled)
                body = await self._agent.answer(wanted, cancelled)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as failed:
            found = failed.split(MusterError)[0]
            raise (found.exceptions[0] if found is not None else failed) from None
        finally:
            cancelled.set()
            self._running -= 1
        return Response(body, media_type=ARROW_STREAM)


async def _read_query(request: Request) -> QueryRequest:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise TooLarge(f"The body has {length} bytes; at most {MAX_BODY_BYTES} are allowed.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(f"The body has more than {MAX_BODY_BYTES} bytes.")
    try:
        return QueryRequest.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"]) or "body"
        raise BadRequest(f"{where}: {first['msg']}.", hint="See openapi/probe.yaml.", member=where) from None


async def _watch(request: Request, cancelled: threading.Event) -> None:
    """Ask whether the caller has gone; then the work stops."""
    while not cancelled.is_set():
        if await request.is_disconnected():
            cancelled.set()
        await anyio.sleep(0.1)


def _problem(error: MusterError) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    return Response(orjson.dumps(error.problem()), error.status, headers, media_type=_PROBLEM)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MusterError)
    return _problem(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _problem(NotFound(f"There is no {request.url.path}.", hint="Ask /v1/node or /v1/query."))
    body = BadRequest(f"{request.method} {request.url.path}: {error.detail}.").problem() | {"status": error.status_code}
    return Response(orjson.dumps(body), error.status_code, error.headers, media_type=_PROBLEM)


async def _on_bug(request: Request, error: Exception) -> Response:
    return _problem(Internal("The agent failed on this request; its log says more."))


class _Metrics(Collector):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[GaugeMetricFamily]:
        stats = self._agent.stats()
        for name, text, value in (
            ("ranks_alive", "Training processes that run.", stats.ranks_alive),
            ("lives", "Lives of ranks that are kept.", stats.lives),
            ("recorder_errors", "Errors that recorders counted.", stats.recorder_errors),
            ("store_errors", "Inserts that failed and columns that were left out.", stats.store_errors),
            ("background_errors", "Failures of background work, which went on.", stats.background_errors),
        ):
            yield GaugeMetricFamily(f"muster_agent_{name}", text, value=value)
        for name, text, values in (
            ("rows", "Rows that are held.", stats.rows),
            ("rows_lost", "Rows overwritten or torn before they could be read.", stats.rows_lost),
            ("rows_expired", "Rows dropped by retention.", stats.rows_expired),
        ):
            family = GaugeMetricFamily(f"muster_agent_{name}", text, labels=("rank", "table"))
            for (rank, table), value in values.items():
                family.add_metric(["" if rank is None else str(rank), table], value)
            yield family
