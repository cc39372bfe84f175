"""What every request passes on its way in and out: the host that it names, a cap on its body, security headers, metrics."""

from __future__ import annotations

import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muster.errors import Forbidden, TooLarge
from muster.gateway.errors import problem_response
from muster.gateway.metrics import Metrics
from muster.registry.addresses import AllowList

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)


class Edge:
    """ASGI middleware. A request without a length is cut off once it has sent too much.

    `hosts`: what the Host header may name; None: anything. A web page that has its own name resolve to this machine (DNS
    rebinding) still sends that name.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, max_body_bytes: int, hosts: AllowList | None = None) -> None:
        self._app = app
        self._metrics = metrics
        self._max = max_body_bytes
        self._hosts = hosts

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
        host = host_of(next((v for k, v in scope["headers"] if k == b"host"), b""))
        try:
            if self._hosts is not None and host and not self._hosts.allows(host):
                foreign = Forbidden(
                    f"This gateway is not addressed as {host[:253]!r}.",
                    hint="Ask it by the name or number it listens on, or add this one to the gateway's setting hosts.",
                )
                await problem_response(foreign)(scope, receive, watched_send)
            elif length.isdigit() and int(length) > self._max:
                error = TooLarge(f"The body has {int(length)} bytes; at most {self._max} are read.")
                await problem_response(error)(scope, receive, watched_send)
            else:
                await self._app(scope, limited_receive, watched_send)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(scope["method"][:16], route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - started)


def host_of(header: bytes) -> str:
    """The name or number in a Host header, without its port."""
    text = header.decode("latin-1").strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdigit() else text
