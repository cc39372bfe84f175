"""One rank of the demo's job: lock-step training in miniature, recorded through the public API like any script.

RANK=0 WORLD_SIZE=2 MUSTER_JOB=demo python -m muster.cli.demo.worker --port 5000
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from array import array

import muster.probe as probe
from muster.cli.demo.network import Star

_VALUES = 1024


def main() -> None:
    """Train until the steps are done or somebody stops it."""
    options = _options()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    probe.start()
    listener = None
    if rank == 0:
        listener = socket.socket(fileno=options.listen_fd) if options.listen_fd is not None else _bound(options.port)
    star = Star(rank, world_size, options.port, listener)
    gradients = array("d", [float(rank)] * _VALUES)
    for step in range(1, options.steps + 1):
        with probe.span("forward", "forward"):
            time.sleep(options.compute_ms / 1000)
            if options.slow_ms:
                time.sleep(options.slow_ms / 1000)
        with probe.collective(
            "all_reduce", nbytes=gradients.itemsize * _VALUES, shape=[_VALUES], dtype="float64", seq=step
        ):
            star.all_reduce(gradients)
        probe.step(tokens=_VALUES)
    star.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="port of rank 0 on loopback")
    parser.add_argument("--listen-fd", type=int, default=None, help="a listening socket that rank 0 has inherited")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--compute-ms", type=float, default=20.0)
    parser.add_argument("--slow-ms", type=float, default=0.0, help="what this rank takes longer")
    return parser.parse_args()


def _bound(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(1024)
    return listener


if __name__ == "__main__":
    main()
