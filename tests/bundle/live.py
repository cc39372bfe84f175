"""A live job: real processes that record, real agents, a real gateway; and the same job as a bundle."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import uvicorn

from federation.real_agents import RealAgent
from muster.bundle.agents import AgentSource
from muster.bundle.manifest import Manifest
from muster.bundle.record import RecordLimits, record
from muster.bundle.sources import GatewaySource, http_client
from muster.client import Client
from muster.gateway.app import create_app
from muster.gateway.settings import GatewaySettings
from muster.probe.agent.register import registration

TRAIN = """
import sys, time
import muster.probe as probe
assert probe.start(), probe.errors()
rank, steps, then = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
scores = probe.table("my.scores", score=float, tag=str)
for step in range(1, steps + 1):
    with probe.span("work", phase="forward", batch=step):
        with probe.collective("all_reduce", nbytes=8 * rank, seq=step):
            time.sleep(0.001)
    probe.step(tokens=100 + rank)
    scores.row(score=rank + step / 4, tag=None if step % 3 else "third")
print("trained", flush=True)
if then == "wait":
    with probe.collective("all_reduce", nbytes=8, seq=steps + 1):
        time.sleep(600)
elif then == "loop":
    while True:
        steps += 1
        with probe.collective("all_reduce", nbytes=8, seq=steps):
            time.sleep(0.0005)
        probe.step()
elif then == "raise":
    raise RuntimeError("broken on purpose")
elif then == "sleep":
    time.sleep(600)
"""


class LiveJob:
    """Nodes with ranks of job `j` below a directory. `close` ends all of it."""

    def __init__(self, directory: Path, world_size: int) -> None:
        self.directory = directory
        self.world_size = world_size
        self.agents: list[RealAgent] = []
        self._processes: list[subprocess.Popen[str]] = []
        app = create_app(GatewaySettings(evaluate_s=0))
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        end = time.monotonic() + 30
        while not self._server.started:
            assert time.monotonic() < end, "the gateway does not start"
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    def rank(self, node: str, rank: int, steps: int = 20, then: str = "end") -> subprocess.Popen[str]:
        """A process that has done its steps when this returns."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")} | {
            "MUSTER_JOB": "j", "MUSTER_DIR": str(self.directory / node), "MUSTER_GENERATION": "g", "MUSTER_NODE": node,
            "MUSTER_COLLECT": "none", "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": str(self.world_size),
        }  # fmt: skip
        words = [sys.executable, "-c", TRAIN, str(rank), str(steps), then]
        process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "trained\n"
        if then == "end":
            assert process.wait(30) == 0
        return process

    def serve(self, node: str) -> RealAgent:
        """An agent over a node, registered with the gateway."""
        agent = RealAgent(node, self.directory / node)
        self.agents.append(agent)
        self.register(agent)
        return agent

    def register(self, agent: RealAgent) -> None:
        info = agent.info()
        said = registration(info, agent.addr)
        url = f"{self.url}/jobs/j/nodes/{agent.node}"
        headers = {"Content-Type": "application/json"}
        httpx.put(url, content=said.model_dump_json(by_alias=True), headers=headers, trust_env=False).raise_for_status()

    def client(self) -> Client:
        return Client(self.url)

    def record(self, out: Path, *, through: str = "gateway", **options: Any) -> Manifest:
        """Record the job into a bundle, through the gateway or from its agents."""

        async def run() -> Manifest:
            async with http_client() as client:
                source: Any = GatewaySource("j", self.url, client)
                if through == "agents":
                    source = AgentSource("j", [a.addr for a in self.agents], client)
                return await record(source, out, **options)

        return anyio.run(run)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for agent in self.agents:
            agent.stop()
        self._server.should_exit = True
        self._thread.join(5)


def essence(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a verdict concludes, without what depends on the moment (ages, times, durations)."""
    findings = [(f["id"], f["severity"], f["kind"], f["ranks"], f["victims"], f["hosts"]) for f in body["findings"]]
    return {
        **{k: body[k] for k in ("status", "phase", "job", "generation", "world_size", "step", "recommendation")},
        "findings": findings,
        "checks": {name: (c[0]["status"], c[0]["gate"]) for name, c in body["checks"].items()},
        "coverage": {k: v for k, v in body["coverage"].items() if k not in ("as_of", "missing")},
        "missing": [(m["rank"], m["host"], m["state"]) for m in body["coverage"]["missing"]],
        "steps": {s["name"]: (s["columns"], s["row_count"]) for s in body["steps"]},
    }


def sorted_rows(rows: Sequence[Sequence[Any]]) -> list[str]:
    return sorted(map(repr, rows))


__all__ = ["LiveJob", "RecordLimits", "essence", "sorted_rows"]
