"""Every error leaves as application/problem+json (RFC 9457), whatever raised it."""

from __future__ import annotations

from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from muster.errors import BadRequest, Internal, MusterError, NotFound, ParameterError, TooLarge

PROBLEM = "application/problem+json"
_log = structlog.get_logger("muster.gateway")


def problem_response(error: MusterError) -> Response:
    """The response for an error of ours."""
    headers = {"Cache-Control": "no-store"}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 429:
        headers["Retry-After"] = "1"
    return Response(orjson.dumps(error.problem(), default=str), error.status, headers, media_type=PROBLEM)


def install(app: FastAPI) -> None:
    """Make an app answer every error as a problem."""
    app.add_exception_handler(MusterError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MusterError)
    if error.status >= 500:
        _log.warning("request failed", path=request.url.path, code=error.code, detail=error.detail)
    return problem_response(error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = dict(error.errors()[0])
    where = [str(p) for p in first["loc"]]
    name = ".".join(where[1:]) or where[0]
    place = {"query": "parameter", "path": "path", "body": "member", "header": "header"}.get(where[0], where[0])
    if first["type"] == "json_invalid":
        return problem_response(BadRequest("The body is not JSON.", hint="Send application/json."))
    kind = BadRequest if where[0] == "body" else ParameterError
    return problem_response(kind(f"{place} {name}: {first['msg']}.", hint="See /openapi.json.", parameter=name))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem_response(NotFound(f"There is no {request.url.path}.", hint="See /openapi.json for what there is."))
    if error.status_code == 413:
        return problem_response(TooLarge(f"{str(error.detail).capitalize()}.", hint="Send less at a time."))
    body = BadRequest(f"{request.method} {request.url.path}: {error.detail}.").problem()
    body |= {"status": error.status_code, "title": str(error.detail), "code": f"http_{error.status_code}"}
    headers = {"Cache-Control": "no-store"} | dict(error.headers or {})
    return Response(orjson.dumps(body), error.status_code, headers, media_type=PROBLEM)


async def _on_bug(request: Request, error: Exception) -> Response:
    _log.error("unexpected error", path=request.url.path, exc_info=error)
    return problem_response(Internal("The gateway failed on this request; its log says more."))
