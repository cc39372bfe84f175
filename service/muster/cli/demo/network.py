"""An all-reduce over loopback sockets: every rank sends its array to rank 0, which adds them up and sends the sum back.

Each rank waits for the data itself, so a slow rank really keeps the others waiting, as in training.
"""

from __future__ import annotations

import socket
import time
from array import array

TIMEOUT_S = 600.0
_CONNECT_S = 30.0


class Star:
    """Rank 0 in the middle. Raises OSError (ConnectionError when a peer has gone) like any network."""

    def __init__(self, rank: int, world_size: int, port: int, listener: socket.socket | None = None) -> None:
        """Rank 0 brings the `listener` of `port`; the others connect to it."""
        self.rank = rank
        self._peers: list[socket.socket] = []
        if rank == 0:
            assert listener is not None
            self._accept(listener, world_size)
        else:
            self._peers = [_connect(port)]
            self._peers[0].sendall(rank.to_bytes(4, "little"))

    def all_reduce(self, values: array[float]) -> array[float]:
        """The sum of the arrays of all ranks."""
        if self.rank != 0:
            self._peers[0].sendall(values.tobytes())
            return _receive(self._peers[0], len(values))
        total = array("d", values)
        for peer in self._peers:
            for i, value in enumerate(_receive(peer, len(values))):
                total[i] += value
        for peer in self._peers:
            peer.sendall(total.tobytes())
        return total

    def close(self) -> None:
        for peer in self._peers:
            peer.close()

    def _accept(self, listener: socket.socket, world_size: int) -> None:
        found: dict[int, socket.socket] = {}
        listener.settimeout(_CONNECT_S)
        while len(found) < world_size - 1:
            peer, _ = listener.accept()
            _prepare(peer)
            found[int.from_bytes(_exactly(peer, 4), "little")] = peer
        self._peers = [found[r] for r in sorted(found)]


def listen() -> socket.socket:
    """A listener on a free port of loopback."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    return listener


def _connect(port: int) -> socket.socket:
    end = time.monotonic() + _CONNECT_S
    while True:
        try:
            peer = socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_S)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
            continue
        _prepare(peer)
        return peer


def _prepare(peer: socket.socket) -> None:
    peer.settimeout(TIMEOUT_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _receive(peer: socket.socket, count: int) -> array[float]:
    values = array("d")
    values.frombytes(_exactly(peer, count * values.itemsize))
    return values


def _exactly(peer: socket.socket, size: int) -> bytes:
    chunks: list[bytes] = []
    while size:
        chunk = peer.recv(min(size, 1 << 16))
        if not chunk:
            raise ConnectionError("connection closed by peer")
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
