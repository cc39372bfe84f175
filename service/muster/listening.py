"""Where a service listens: `host:port`, the socket, its URL, and whether only this machine can reach it."""

from __future__ import annotations

import ipaddress
import socket

from muster.errors import ConfigError


def parse(listen: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. Raises ValueError."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"listen is {listen!r}; write host:port, such as 127.0.0.1:8700 or [::1]:0")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address of this host name or number."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_unspecified(host: str) -> bool:
    """Whether a host number means all addresses of this machine, so that nobody can call it by that number."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def open_listener(listen: str, *, hint: str, backlog: int) -> socket.socket:
    """A listening socket. Raises ConfigError when the address cannot be had."""
    host, port = parse(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        raise ConfigError(f"cannot listen on {listen}: {error.strerror or error}", hint=hint) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL under which a listener is reached."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
