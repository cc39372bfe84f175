"""Ranks that are real processes recording into a directory of the test, and the agent's parts over it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import orjson
import pyarrow as pa
import pytest

from muster.probe.agent.agent import Agent
from muster.probe.agent.snapshot import Node
from muster.probe.agent.store import Store
from muster.protocol import QueryRequest, RankRef, SubQuery

TRAIN = """
import os, sys, time
import muster.probe as probe
assert probe.start(), probe.errors()
metrics = probe.table("my.metrics", reward=float, episode=int)
steps = int(sys.argv[1])
what = sys.argv[2]
if what == "other-columns":
    other = probe.table("my.metrics2", reward=str, extra=float)
    other.row(reward="high", extra=0.5)
else:
    probe.table("my.metrics2", reward=int, episode=int).row(reward=7, episode=1)
for i in range(1, steps + 1):
    with probe.collective("all_reduce", nbytes=8, seq=i):
        time.sleep(0 if what == "busy" else 0.001)
    probe.step()
    metrics.row(reward=i / 2, episode=i)
if what == "stop":
    probe.stop()
elif what == "lose-lock":
    os.closerange(3, 256)
print("trained", flush=True)
if what == "hang":
    with probe.collective("all_gather", nbytes=16, seq=steps + 1):
        time.sleep(600)
elif what in ("idle", "busy", "stop", "lose-lock", "other-columns"):
    time.sleep(600)
elif what == "loop":
    while True:
        steps += 1
        with probe.collective("all_reduce", nbytes=8, seq=steps):
            time.sleep(0.0002)
elif what == "recv":
    with probe.collective("recv", peer=1, nbytes=16):
        time.sleep(600)
elif what == "raise":
    raise RuntimeError("broken on purpose")
elif what == "exit3":
    sys.exit(3)
"""


class Ranks:
    """Starts rank processes and ends them all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._processes: list[subprocess.Popen[str]] = []

    def start(
        self, rank: int = 0, *, job: str = "j", steps: int = 20, then: str = "idle", generation: str = "g"
    ) -> subprocess.Popen[str]:
        """A rank that has done its steps when this returns."""
        environ = {
            **os.environ,
            "MUSTER_JOB": job,
            "MUSTER_DIR": str(self.directory),
            "MUSTER_GENERATION": generation,
            "MUSTER_COLLECT": "none",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
        }
        process = subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(steps), then],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "trained\n"
        return process

    def end(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path / "rings")
    yield made
    made.end()


class Asked:
    """The streams of one answer, by id."""

    def __init__(self, body: bytes) -> None:
        self.tables: dict[str, pa.Table] = {}
        self.meta: dict[str, dict[str, str]] = {}
        source = io.BytesIO(body)
        while source.tell() < len(body):
            table = pa.ipc.open_stream(source).read_all()
            meta = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
            self.tables[meta["id"]] = table
            self.meta[meta["id"]] = meta

    def rows(self, id: str = "q") -> list[dict[str, Any]]:
        assert "error" not in self.meta[id], self.meta[id]
        found: list[dict[str, Any]] = self.tables[id].to_pylist()
        return found

    def error(self, id: str = "q") -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.meta[id]["error"])
        return found


class Served:
    """An agent over the ranks' directory."""

    def __init__(self, directory: Path, job: str = "j", **options: Any) -> None:
        node = Node(job, "n0", "n0", "http://127.0.0.1:1")
        self.store = Store([directory], node, **({"rows_per_table": 50_000, "memory_limit": "512MB"} | options))
        self.agent = Agent(self.store)

    def ask(
        self, *sql: str, ranks: list[RankRef] | None = None, cancelled: threading.Event | None = None, **limits: Any
    ) -> Asked:
        """One request; the first statement has the id `q`, the others their position."""
        queries = [SubQuery(id="q" if i == 0 else str(i), sql=s, **limits) for i, s in enumerate(sql)]
        request = QueryRequest(queries=queries, ranks=ranks, deadline_ms=limits.get("deadline_ms", 10_000))
        return Asked(anyio.run(self.agent.answer, request, cancelled or threading.Event()))

    def state(self, rank: int = 0) -> dict[str, Any]:
        (row,) = self.ask(f"SELECT * FROM process.rank WHERE _rank = {rank}").rows()
        return row


Serve = Callable[..., Served]


@pytest.fixture
def serve(ranks: Ranks) -> Iterator[Serve]:
    made: list[Served] = []

    def start(**options: Any) -> Served:
        made.append(Served(ranks.directory, **options))
        return made[-1]

    yield start
    for served in made:
        served.store.close()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
