"""Which addresses of probes may be called: an allow-list of networks and host names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from muster.errors import Forbidden, ParameterError

LOOPBACK = ("127.0.0.0/8", "::1/128", "localhost")
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")


class AllowList:
    """Networks (`10.0.0.0/8`), host names (`node1`) and domains (`.cluster.local`)."""

    def __init__(self, entries: Sequence[str] = LOOPBACK) -> None:
        """Raises ValueError for an entry that is none of these."""
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._hosts: set[str] = set()
        self._domains: list[str] = []
        for entry in entries:
            text = entry.strip().lower()
            try:
                self._networks.append(ipaddress.ip_network(text))
                continue
            except ValueError:
                pass
            if text.startswith(".") and _HOST.fullmatch(text[1:]):
                self._domains.append(text)
            elif _HOST.fullmatch(text):
                self._hosts.add(text)
            else:
                raise ValueError(f"{entry!r} is neither a network, a host name nor a .domain")

    def check(self, addr: str) -> str:
        """The address, without a slash at its end. Raises ParameterError for what is no plain http(s) URL, Forbidden for
        what is not on the list."""
        try:
            parts = urlsplit(addr)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ParameterError(f"addr {addr!r} is not a URL: {error}", member="addr") from None
        if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
            raise ParameterError(
                f"addr {addr!r} is not a plain http or https URL.", hint="Write http://host:port.", member="addr"
            )
        if port == 0:
            raise ParameterError(f"addr {addr!r} has port 0.", member="addr")
        if not self.allows(host):
            raise Forbidden(
                f"The address {host} is not on the list of addresses that may be called.",
                hint="Add its network, name or .domain to the gateway's setting probe_addresses.",
            )
        return addr.rstrip("/")

    def allows(self, host: str) -> bool:
        """Whether a host name or number may be called."""
        text = host.lower().rstrip(".")
        try:
            number = ipaddress.ip_address(text)
        except ValueError:
            return text in self._hosts or any(text.endswith(d) for d in self._domains)
        return any(number.version == n.version and number in n for n in self._networks)
