"""What every request passes on its way in and out: a cap on its body, security headers, metrics."""

from __future__ import annotations

import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muster.errors import TooLarge
from muster.gateway.errors import problem_response
from muster.gateway.metrics import Metrics

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)


class Edge:
    """ASGI middleware. A request without a length is cut off once it has sent too much."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, max_body_bytes: int) -> None:
        self._app = app
        self._metrics = metrics
        self._max = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500
        read = 0

        async def limited_receive() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max:
                raise HTTPException(413, f"the body has more than {self._max} bytes")
            return message

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
            await send(message)

        length = next((v for k, v in scope["headers"] if k == b"content-length"), b"")
        try:
            if length.isdigit() and int(length) > self._max:
                error = TooLarge(f"The body has {int(length)} bytes; at most {self._max} are read.")
                await problem_response(error)(scope, receive, watched_send)
            else:
                await self._app(scope, limited_receive, watched_send)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(scope["method"][:16], route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - started)
