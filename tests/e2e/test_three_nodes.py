"""Three nodes, each a real agent over real processes that train in lock step: the gateway's answer is that of one DuckDB
with all rows, and says so when a node is gone."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest
from harness import Stack, free_port

from muster.cli.demo.network import listen
from muster.diagnosis.catalogue import load
from muster.tables import REGISTRY
from oracle import named_params

pytestmark = pytest.mark.timeout(180)
NODES, RANKS = 3, 6
TABLES = ["python.torch_step_timing", "python.comm_collective", "python.trace_event", "process.exit"]


class Cluster:
    """Nodes n0, n1, n2 with two ranks each, on one machine, told apart by their directories."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.agents: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.addresses: list[str] = []
        for n in range(NODES):
            port = free_port()
            self.addresses.append(f"http://127.0.0.1:{port}")
            flags = ["agent", "--job", "j", "--gateway", stack.url, "--node", f"n{n}", "--listen", f"127.0.0.1:{port}"]
            self.agents.append(stack.spawn(f"agent-{n}", flags, MUSTER_DIR=self.directory(n)))

    def directory(self, node: int) -> str:
        return f"{self.stack.rings}-n{node}"

    def train(self, steps: int, compute_ms: float = 20.0) -> None:
        listener = listen()
        os.set_inheritable(listener.fileno(), True)
        for rank in range(RANKS):
            node = rank // 2
            words = ["-m", "muster.cli.demo.worker", "--port", str(listener.getsockname()[1]), "--steps", str(steps)]
            words += ["--compute-ms", str(compute_ms)] + (["--listen-fd", str(listener.fileno())] if rank == 0 else [])
            environ = {
                **os.environ, "MUSTER_JOB": "j", "MUSTER_DIR": self.directory(node), "MUSTER_NODE": f"n{node}",
                "MUSTER_GENERATION": "g", "MUSTER_COLLECT": "none", "RANK": str(rank), "LOCAL_RANK": str(rank % 2),
                "WORLD_SIZE": str(RANKS), "GROUP_RANK": str(node),
            }  # fmt: skip
            passed = (listener.fileno(),) if rank == 0 else ()
            self.workers.append(subprocess.Popen([sys.executable, *words], env=environ, pass_fds=passed))
        listener.close()

    def stop(self) -> None:
        for process in (*self.workers, *self.agents):
            process.send_signal(signal.SIGKILL)
            process.wait()

    def oracle(self) -> duckdb.DuckDBPyConnection:
        """One DuckDB with the rows of all nodes, asked from the agents themselves, and the gateway's roster."""
        connection = duckdb.connect()
        connection.execute('ATTACH \':memory:\' AS "global"; USE "global"')
        for name in TABLES:
            parts = [self._rows(addr, name) for addr in self.addresses]
            self._put(connection, name, pa.concat_tables(parts))
        nodes = self.stack.client.post("/jobs/j/query", json={"sql": "SELECT * FROM cluster.nodes"}).json()
        columns = [f'"{c["name"]}" {c["type"]}' for c in nodes["columns"]]
        connection.execute(f"CREATE SCHEMA cluster; CREATE TABLE cluster.nodes ({', '.join(columns)})")
        connection.executemany(f"INSERT INTO cluster.nodes VALUES ({', '.join('?' * len(columns))})", nodes["rows"])
        return connection

    @staticmethod
    def _put(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
        schema = name.partition(".")[0]
        connection.register("incoming", rows)
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")

    @staticmethod
    def _rows(addr: str, name: str) -> pa.Table:
        query = {"queries": [{"id": "all", "sql": f"SELECT * FROM {name}"}]}
        body = httpx.post(f"{addr}/v1/query", json=query, trust_env=False, timeout=30).content
        table = pa.ipc.open_stream(io.BytesIO(body)).read_all()
        assert b"error" not in table.schema.metadata
        return table.replace_schema_metadata(None)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Stack(tmp_path) as stack:
        made = Cluster(stack)
        try:
            yield made
        finally:
            made.stop()


def test_the_steps_of_job_health_are_those_of_one_duckdb(cluster: Cluster) -> None:
    cluster.train(steps=250, compute_ms=3.0)
    for worker in cluster.workers:
        assert worker.wait(60) == 0
    cluster.stack.until("j", lambda _, b: b["phase"] == "finished", 20)
    full = cluster.stack.client.get("/jobs/j/diagnoses/job_health").json()
    assert full["coverage"]["complete"]
    oracle = cluster.oracle()
    compared = 0
    for step in load().get("job_health").diagnosis.steps:
        if "process.rank" in step.sql:
            continue  # made anew for each question, so no two answers are of the same moment
        params = named_params(step.sql, full["parameters"]["job_health"])
        expected = oracle.execute(step.sql, params).fetchall()
        (found,) = [s["rows"] for s in full["steps"] if s["name"] == step.name]
        assert len(found) == len(expected) > 0, step.name
        wanted = sorted(([_json(v) for v in row] for row in expected), key=repr)
        for mine, theirs in zip(sorted(found, key=repr), wanted, strict=True):
            assert all(_same(a, b) for a, b in zip(mine, theirs, strict=True)), (step.name, mine, theirs)
        compared += 1
    assert compared >= 3


def _json(value: Any) -> Any:
    return str(value) if type(value).__name__ == "Decimal" else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float | int):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    return bool(a == b)


def test_a_node_that_is_gone_is_said_and_never_a_pass(cluster: Cluster) -> None:
    cluster.train(steps=1_000_000)
    stack = cluster.stack
    stack.until("j", lambda _, b: b["coverage"]["complete"] and (b["step"] or 0) > 100, 60)
    cluster.agents[1].kill()
    cluster.agents[1].wait()
    status, body = stack.health("j")
    assert status == 503, body
    assert body["status"] != "pass"
    assert [m["rank"] for m in body["coverage"]["missing"]] == [2, 3]
    assert {m["state"] for m in body["coverage"]["missing"]} == {"unreachable"}
    if shutil.which("curl"):
        assert _curl("-f", f"{stack.url}/jobs/j/health") == 22
        assert _curl("--fail-with-body", f"{stack.url}/jobs/j/health") == 22
        assert _curl("-f", f"{stack.url}/jobs/j/health?on_fail=200") == 0
        assert _curl("-f", f"{stack.url}/jobs/nope/health") == 22


def _curl(*words: str) -> int:
    return subprocess.run(["curl", "-s", "-o", os.devnull, "--noproxy", "*", *words], timeout=30).returncode


def test_the_roster_and_its_agents_survive_a_restart_of_the_gateway(cluster: Cluster) -> None:
    cluster.train(steps=1_000_000)
    stack = cluster.stack
    stack.until("j", lambda _, b: b["coverage"]["complete"] and (b["step"] or 0) > 60, 60)
    before = json.loads(stack.client.get("/jobs/j").text)["ranks"]
    stack.restart_gateway()
    after = json.loads(stack.client.get("/jobs/j").text)["ranks"]
    assert [(r["rank"], r["node"], r["pid"]) for r in after] == [(r["rank"], r["node"], r["pid"]) for r in before]
    stack.until("j", lambda _, b: b["coverage"]["complete"], 30)


def test_every_table_that_is_compared_exists() -> None:
    assert set(TABLES) <= REGISTRY.keys()
