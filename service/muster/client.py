"""A typed client of the gateway, synchronous and asynchronous.

    from muster.client import Client

    with Client("http://127.0.0.1:8700") as muster:
        health = muster.health("my-job")
        if health.status == "fail":
            print(health.summary, health.ranks)

A failing job is an answer, not an error: `health()` returns for HTTP 200 and 503 alike. Errors of the gateway are raised
as `muster.errors.MusterError` with its `code`, made from the problem body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from muster import errors
from muster.errors import MusterError, NotReady, ShardUnreachable

DEFAULT_URL = "http://127.0.0.1:8700"
_PROBLEM = "application/problem+json"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The health of a job. `body` is the whole document (docs/api.md)."""

    http_status: int
    body: Mapping[str, Any]

    @property
    def status(self) -> str:
        """pass, warn, fail or unknown."""
        return str(self.body["status"])

    @property
    def phase(self) -> str:
        return str(self.body["phase"])

    @property
    def summary(self) -> str:
        """One line that a pager can show."""
        return str(self.body["summary"])

    @property
    def findings(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.body["findings"]
        return found

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that a finding of severity warn or fail names as culprits."""
        loud = [f for f in self.findings if f["severity"] in ("warn", "fail")]
        return tuple(sorted({r for f in loud for r in f["ranks"]}))

    @property
    def recommendation(self) -> str:
        """none, wait, requeue, requeue_excluding or drain."""
        return str(self.body["recommendation"])

    @property
    def drain_candidates(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.body["drain_candidates"]
        return found

    @property
    def complete(self) -> bool:
        """Whether every rank answered."""
        return bool(self.body["coverage"]["complete"])


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer to a query: columns (name, type, exactness), rows of JSON values, coverage."""

    columns: Sequence[Mapping[str, str]]
    rows: Sequence[Sequence[Any]]
    coverage: Mapping[str, Any]
    elapsed_ms: float

    def dicts(self) -> list[dict[str, Any]]:
        names = [c["name"] for c in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


class _Calls:
    """What both clients send and how they read the answers."""

    @staticmethod
    def options(base_url: str, token: str | None, timeout: float) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return {"base_url": base_url, "headers": headers, "timeout": timeout, "trust_env": False}

    @staticmethod
    def health_params(
        diagnosis: str | Sequence[str] | None,
        params: Mapping[str, Any] | None,
        deadline: float | None,
        min_coverage: float | None,
        lang: str | None,
        max_age: float | None,
    ) -> list[tuple[str, str]]:
        ids = [diagnosis] if isinstance(diagnosis, str) else list(diagnosis or ())
        found = [("diagnosis", i) for i in ids]
        own = {"deadline": deadline, "min_coverage": min_coverage, "lang": lang, "max_age": max_age}
        found += [(k, str(v)) for k, v in own.items() if v is not None]
        found += [(k, str(v).lower() if isinstance(v, bool) else str(v)) for k, v in (params or {}).items()]
        return found

    @staticmethod
    def query_body(sql: str, params: Mapping[str, Any] | None, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"sql": sql, "params": dict(params or {})} | {k: v for k, v in options.items() if v is not None}

    @staticmethod
    def health(answer: httpx.Response) -> HealthReport:
        if answer.status_code in (200, 503) and _kind(answer) != _PROBLEM:
            return HealthReport(answer.status_code, _decoded(answer))
        raise error_of(answer)

    @staticmethod
    def query(answer: httpx.Response) -> QueryResult:
        body = _Calls.json(answer)
        return QueryResult(body["columns"], body["rows"], body["coverage"], body["elapsed_ms"])

    @staticmethod
    def json(answer: httpx.Response) -> Any:
        if answer.status_code != 200:
            raise error_of(answer)
        return _decoded(answer)

    @staticmethod
    def text(answer: httpx.Response) -> str:
        if answer.status_code not in (200, 503) or _kind(answer) == _PROBLEM:
            raise error_of(answer)
        return answer.text


class Client:
    """Synchronous. Raises MusterError for what the gateway refuses, ShardUnreachable when there is no gateway."""

    def __init__(self, base_url: str = DEFAULT_URL, token: str | None = None, *, timeout: float = 30.0) -> None:
        self._http = httpx.Client(**_Calls.options(base_url, token, timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def health(
        self,
        job: str,
        *,
        diagnosis: str | Sequence[str] | None = None,
        params: Mapping[str, Any] | None = None,
        deadline: float | None = None,
        min_coverage: float | None = None,
        lang: str | None = None,
        max_age: float | None = None,
    ) -> HealthReport:
        """The health of a job. `params` are those of the diagnoses, such as step_window."""
        query = _Calls.health_params(diagnosis, params, deadline, min_coverage, lang, max_age)
        return _Calls.health(self._send("GET", f"/jobs/{job}/health", params=query))

    def health_text(self, job: str, **options: Any) -> tuple[str, str]:
        """Status and the report for a terminal. Options as for `health`."""
        defaults = {
            "diagnosis": None,
            "params": None,
            "deadline": None,
            "min_coverage": None,
            "lang": None,
            "max_age": None,
        }
        query = _Calls.health_params(**(defaults | options))
        answer = self._send("GET", f"/jobs/{job}/health", params=query, headers={"Accept": "text/plain"})
        text = _Calls.text(answer)
        return answer.headers.get("Muster-Status", "unknown"), text

    def query(self, job: str, sql: str, params: Mapping[str, Any] | None = None, **options: Any) -> QueryResult:
        """Rows of a SELECT over the whole job. Options: deadline, on_partial, min_coverage, max_rows, use_global."""
        body = _Calls.query_body(sql, params, options)
        return _Calls.query(self._send("POST", f"/jobs/{job}/query", json=body))

    def explain(self, job: str, sql: str, params: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """How a query would be answered: `plan` and `tree`."""
        found: Mapping[str, Any] = _Calls.json(
            self._send("POST", f"/jobs/{job}/explain", json=_Calls.query_body(sql, params, {}))
        )
        return found

    def jobs(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = _Calls.json(self._send("GET", "/jobs"))
        return found

    def job(self, job: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = _Calls.json(self._send("GET", f"/jobs/{job}"))
        return found

    def nodes(self, job: str) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = _Calls.json(self._send("GET", f"/jobs/{job}/nodes"))
        return found

    def tables(self, job: str) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = _Calls.json(self._send("GET", f"/jobs/{job}/tables"))
        return found

    def queries(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = _Calls.json(self._send("GET", "/queries"))
        return found

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise unreachable(str(self._http.base_url), error) from None


class AsyncClient:
    """As `Client`, with coroutines."""

    def __init__(self, base_url: str = DEFAULT_URL, token: str | None = None, *, timeout: float = 30.0) -> None:
        self._http = httpx.AsyncClient(**_Calls.options(base_url, token, timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def health(
        self,
        job: str,
        *,
        diagnosis: str | Sequence[str] | None = None,
        params: Mapping[str, Any] | None = None,
        deadline: float | None = None,
        min_coverage: float | None = None,
        lang: str | None = None,
        max_age: float | None = None,
    ) -> HealthReport:
        query = _Calls.health_params(diagnosis, params, deadline, min_coverage, lang, max_age)
        return _Calls.health(await self._send("GET", f"/jobs/{job}/health", params=query))

    async def query(self, job: str, sql: str, params: Mapping[str, Any] | None = None, **options: Any) -> QueryResult:
        body = _Calls.query_body(sql, params, options)
        return _Calls.query(await self._send("POST", f"/jobs/{job}/query", json=body))

    async def explain(self, job: str, sql: str, params: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        body = _Calls.query_body(sql, params, {})
        found: Mapping[str, Any] = _Calls.json(await self._send("POST", f"/jobs/{job}/explain", json=body))
        return found

    async def jobs(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = _Calls.json(await self._send("GET", "/jobs"))
        return found

    async def job(self, job: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = _Calls.json(await self._send("GET", f"/jobs/{job}"))
        return found

    async def nodes(self, job: str) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = _Calls.json(await self._send("GET", f"/jobs/{job}/nodes"))
        return found

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return await self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise unreachable(str(self._http.base_url), error) from None


class RemoteError(MusterError):
    """An error of a gateway whose code this client does not know."""


def _decoded(answer: httpx.Response) -> Any:
    """The JSON of an answer. Raises NotReady for what is none: a proxy or another server answered."""
    try:
        return answer.json()
    except ValueError:
        raise _not_a_gateway(answer) from None


def _not_a_gateway(answer: httpx.Response) -> NotReady:
    return NotReady(
        f"{answer.request.url} answered HTTP {answer.status_code} with {_kind(answer) or 'no content type'}; that is no"
        " gateway of Muster.",
        hint="Give the gateway's own address, and ask whoever runs a proxy before it.",
    )


def error_of(answer: httpx.Response) -> MusterError:
    """The error that an answer of the gateway stands for."""
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "detail" not in problem:
        return _not_a_gateway(answer)
    code = str(problem.get("code", ""))
    kind = _by_code().get(code, RemoteError)
    position = problem.get("position")
    place = (int(position["line"]), int(position["column"])) if isinstance(position, dict) else None
    known = {"type", "title", "status", "code", "detail", "hint", "position"}
    extra = {k: v for k, v in problem.items() if k not in known}
    return kind(str(problem["detail"]), hint=problem.get("hint"), position=place, **extra)


def unreachable(url: str, error: Exception) -> ShardUnreachable:
    return ShardUnreachable(
        f"The gateway {url.rstrip('/')} cannot be reached: {str(error) or type(error).__name__}.",
        hint="Start one with `muster gateway`, or name it with --gateway or MUSTER_GATEWAY.",
    )


def _by_code() -> Mapping[str, type[MusterError]]:
    return {c.code: c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, MusterError)}


def _kind(answer: httpx.Response) -> str:
    kind: str = answer.headers.get("content-type", "")
    return kind.partition(";")[0].strip()
