"""Run the gateway."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable

import structlog
import uvicorn

from muster.gateway.app import create_app
from muster.gateway.settings import GatewaySettings
from muster.listening import open_listener, url_of


def serve(settings: GatewaySettings, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is told the URL once the socket listens. Raises ConfigError."""
    configure_logging(settings)
    signal.signal(signal.SIGTERM, _end)
    hint = "Is another gateway running? --listen 127.0.0.1:0 takes a free port."
    listener = open_listener(settings.listen, hint=hint, backlog=1024)
    url = url_of(listener)
    gc.set_threshold(50_000, 20, 50)  # a fan-out makes many short-lived objects
    config = uvicorn.Config(
        lambda: create_app(settings),
        factory=True,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    try:
        if ready is not None:
            ready(url)
        structlog.get_logger("muster.gateway").info("listening", url=url)
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        listener.close()


def _end(*_: object) -> None:
    """uvicorn raises the signal again once it has shut down; SIGTERM is how a service is meant to end."""
    raise SystemExit(0)


def configure_logging(settings: GatewaySettings) -> None:
    """Logs go to standard error, as JSON unless that is a terminal."""
    console = settings.log_format == "console" or (settings.log_format == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
