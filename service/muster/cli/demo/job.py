"""The demo's ranks as a job of their own, for `muster run`: a launcher in miniature.

muster run --job demo -- python -m muster.cli.demo.job --ranks 2 --slow 1
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys

from muster.cli.demo.fault import SLOW_MS
from muster.cli.demo.network import listen


def main() -> int:
    """Start the ranks and wait; the first bad exit code is the job's, and ends the others."""
    options = _options()
    listener = listen()
    os.set_inheritable(listener.fileno(), True)
    workers = [_start(rank, options, listener.fileno(), listener.getsockname()[1]) for rank in range(options.ranks)]
    listener.close()
    signal.signal(signal.SIGTERM, lambda *_: _end(workers))
    code = 0
    for worker in workers:
        found = worker.wait()
        if found and not code:
            code = found
            _end(workers)
    return code if code >= 0 else 128 - code


def _start(rank: int, options: argparse.Namespace, descriptor: int, port: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "muster.cli.demo.worker", "--port", str(port), "--steps", str(options.steps)]
    words += ["--slow-ms", str(SLOW_MS if rank == options.slow else 0.0)]
    passed: tuple[int, ...] = ()
    if rank == 0:
        words += ["--listen-fd", str(descriptor)]
        passed = (descriptor,)
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks), "MUSTER_COLLECT": "none"}
    return subprocess.Popen(words, env={**os.environ, **own}, pass_fds=passed)  # noqa: S603 - our own command


def _end(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m muster.cli.demo.job", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--slow", type=int, default=None, metavar="RANK", help="this rank takes longer")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
