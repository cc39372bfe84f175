"""The agent as a process: HTTP, registration, one per job and node, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

from agent.conftest import Ranks, until
from muster.probe.agent import register
from muster.probe.agent.register import Heartbeat, backoff_s
from muster.probe.agent.serve import advertised, running_agent
from muster.probe.agent.settings import AgentSettings
from muster.protocol import ARROW_STREAM, Engine, NodeInfo

DOCS = Path(__file__).parent.parent.parent / "docs"


class Service:
    """`muster agent` as a process."""

    def __init__(self, ranks: Ranks, *flags: str, **environ: str) -> None:
        self.directory = ranks.directory
        words = [
            sys.executable,
            "-m",
            "muster.cli",
            "agent",
            "--job",
            "j",
            "--dir",
            str(ranks.directory),
            "--node",
            "n0",
            *flags,
        ]
        self.process = subprocess.Popen(
            words, env={**os.environ, **environ}, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.file = ranks.directory / "j" / "agent.json"
        until(lambda: self.file.exists() or self.process.poll() is not None, 20)
        self.addr = json.loads(self.file.read_text())["addr"] if self.file.exists() else ""

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def started(ranks: Ranks) -> Iterator[list[Service]]:
    services: list[Service] = []
    yield services
    for service in services:
        service.stop()


def test_it_answers_node_and_query_over_http(ranks: Ranks, started: list[Service]) -> None:
    ranks.start(0)
    started.append(service := Service(ranks))
    node = httpx.get(f"{service.addr}/v1/node", trust_env=False).json()
    assert (node["protocol"], node["job"], node["node"], node["engine"]["name"]) == (1, "j", "n0", "duckdb")
    assert [(r["rank"], r["status"]) for r in node["ranks"]] == [(0, "running")]
    assert {"schema", "name", "columns"} <= node["tables"][0].keys()
    body = {"queries": [{"id": "a", "sql": "SELECT count(*) FROM process.rank"}]}
    answer = httpx.post(f"{service.addr}/v1/query", json=body, trust_env=False)
    assert (answer.status_code, answer.headers["content-type"]) == (200, ARROW_STREAM)
    assert httpx.get(f"{service.addr}/livez", trust_env=False).text == "ok\n"
    assert "muster_agent_ranks_alive 1.0" in httpx.get(f"{service.addr}/metrics", trust_env=False).text


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/query", b"{", 400),
        ("POST", "/v1/query", b'{"queries": []}', 400),
        ("POST", "/v1/query", b'{"queries": [{"id": "a", "sql": "SELECT 1", "max_rows": -1}]}', 400),
        ("POST", "/v1/query", b"x" * (2 << 20), 413),
        ("GET", "/v1/query", b"", 405),
        ("GET", "/nope", b"", 404),
        (
            "POST",
            "/v1/query",
            b'{"queries": [{"id": "a", "sql": "SELECT 1"}], "ranks": [{"rank": 9, "generation": "x"}]}',
            404,
        ),
    ],
)
def test_bad_requests_are_problems(
    ranks: Ranks, started: list[Service], method: str, path: str, body: bytes, status: int
) -> None:
    ranks.start(0, steps=1)
    started.append(service := Service(ranks))
    answer = httpx.request(method, service.addr + path, content=body, trust_env=False)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status


def test_with_a_token_nobody_else_is_answered(ranks: Ranks, started: list[Service]) -> None:
    ranks.start(0, steps=1)
    started.append(service := Service(ranks, MUSTER_AGENT_SERVE_TOKEN="only-the-gateway"))
    assert httpx.get(f"{service.addr}/v1/node", trust_env=False).status_code == 401
    right = {"Authorization": "Bearer only-the-gateway"}
    assert httpx.get(f"{service.addr}/v1/node", headers=right, trust_env=False).status_code == 200


def test_beyond_loopback_it_does_not_start_without_a_token(ranks: Ranks, started: list[Service]) -> None:
    started.append(service := Service(ranks, "--listen", "0.0.0.0:0"))
    _, said = service.process.communicate(timeout=20)
    assert service.process.returncode == 3
    assert b"serve_token" in said


def test_beyond_loopback_it_must_know_how_it_is_reached(ranks: Ranks, started: list[Service]) -> None:
    options = ("--listen", "0.0.0.0:0", "--gateway", "http://127.0.0.1:9")
    started.append(service := Service(ranks, *options, MUSTER_AGENT_SERVE_TOKEN="only-the-gateway"))
    _, said = service.process.communicate(timeout=20)
    assert service.process.returncode == 3
    assert b"advertise" in said


@pytest.mark.parametrize(
    ("advertise", "registered"),
    [
        (None, "http://127.0.0.1:{port}"),
        ("http://node1:0", "http://node1:{port}"),
        ("http://[fd00::1]:0/agents", "http://[fd00::1]:{port}/agents"),
        ("https://proxy/node1", "https://proxy/node1"),
        ("http://node1:8701", "http://node1:8701"),
    ],
)
def test_the_address_that_is_registered(advertise: str | None, registered: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        assert advertised(advertise, listener) == registered.format(port=listener.getsockname()[1])


def test_an_agent_is_found_while_it_runs_and_not_by_the_file_of_a_killed_one(ranks: Ranks, started: list[Service]) -> None:
    ranks.start(0, steps=1)
    started.append(service := Service(ranks))
    found = running_agent([ranks.directory], "j")
    assert found is not None
    assert found["addr"] == service.addr
    service.process.kill()
    service.process.wait(10)
    assert service.file.exists()
    assert running_agent([ranks.directory], "j") is None


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_what_listens_on_all_addresses_may_serve_without_a_gateway(host: str) -> None:
    settings = AgentSettings(job="j", listen=f"{host}:0", serve_token="only-the-gateway")
    assert settings.advertise is None
    with pytest.raises(ValueError, match="advertise"):
        AgentSettings(job="j", listen=f"{host}:0", serve_token="only-the-gateway", gateway="http://gateway:8700")


@pytest.mark.anyio
async def test_an_unexpected_failure_does_not_end_the_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "backoff_s", lambda failures: 0.001)
    asked = failed = 0

    def describe() -> NodeInfo:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise RuntimeError("the store is broken")
        return NodeInfo(engine=Engine(name="duckdb", version="2.0.1"), job="j", node="n0", host="n0", now=datetime.now(UTC))

    def count() -> None:
        nonlocal failed
        failed += 1

    heartbeat = Heartbeat("http://127.0.0.1:9", None, "http://127.0.0.1:1", describe, count)
    async with anyio.create_task_group() as group:
        group.start_soon(heartbeat.run)
        await anyio.to_thread.run_sync(until, lambda: asked >= 6)
        group.cancel_scope.cancel()
    assert failed == 3


def test_there_is_one_agent_for_a_job_on_a_node(ranks: Ranks, started: list[Service]) -> None:
    ranks.start(0, steps=1)
    started.append(Service(ranks))
    second = subprocess.run(
        [sys.executable, "-m", "muster.cli", "agent", "--job", "j", "--dir", str(ranks.directory)],
        capture_output=True,
        timeout=30,
    )
    assert second.returncode == 3
    assert b"already serves" in second.stderr
    assert started[0].addr.encode() in second.stderr.replace(b"\n", b"")


def test_sigterm_ends_it_and_its_address_file(ranks: Ranks, started: list[Service]) -> None:
    ranks.start(0, steps=1)
    started.append(service := Service(ranks))
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(10) in (0, -signal.SIGTERM)
    assert not service.file.exists()


def test_it_serves_on_after_training_and_ends_when_it_has_lingered(ranks: Ranks, started: list[Service]) -> None:
    rank = ranks.start(0)
    started.append(service := Service(ranks, "--linger-s", "3"))
    rank.kill()
    rank.wait()
    (found,) = httpx.get(f"{service.addr}/v1/node", trust_env=False).json()["ranks"]
    assert found["status"] == "dead"
    assert service.process.wait(20) == 0


class Gateway(ThreadingHTTPServer):
    """Takes registrations and keeps them."""

    def __init__(self, port: int = 0) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.tokens: list[str | None] = []

        class Handler(BaseHTTPRequestHandler):
            server: Gateway

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.server.bodies.append(json.loads(body))
                self.server.paths.append(self.path)
                self.server.tokens.append(self.headers.get("Authorization"))
                answer = b'{"heartbeat_s": 0.5, "expires_s": 5}'
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


def test_it_registers_sends_heartbeats_and_tells_of_a_death_at_once(ranks: Ranks, started: list[Service]) -> None:
    rank = ranks.start(0)
    gateway = Gateway()
    try:
        started.append(service := Service(ranks, "--gateway", gateway.url, "--token", "t"))
        until(lambda: len(gateway.bodies) >= 3)
        first = gateway.bodies[0]
        assert gateway.paths[0] == "/jobs/j/nodes/n0"
        assert gateway.tokens[0] == "Bearer t"
        assert (first["addr"], first["host"], first["world_size"], first["kind"]) == (service.addr, "n0", 2, "agent")
        assert first["tables"]
        assert first["ranks"][0]["status"] == "running"
        rank.kill()
        until(lambda: gateway.bodies[-1]["ranks"][0]["status"] == "dead", 3)
    finally:
        gateway.stop()


def test_it_waits_for_a_gateway_and_outlives_its_death(ranks: Ranks, started: list[Service]) -> None:
    ranks.start(0)
    first = Gateway()
    port = first.server_address[1]
    first.stop()
    started.append(service := Service(ranks, "--gateway", first.url))
    time.sleep(1)
    assert httpx.get(f"{service.addr}/v1/node", trust_env=False).status_code == 200
    second = Gateway(port)
    until(lambda: bool(second.bodies), 20)
    second.stop()
    time.sleep(1)
    third = Gateway(port)
    until(lambda: bool(third.bodies), 20)
    third.stop()
    assert service.process.poll() is None


def test_pauses_grow_are_bounded_and_differ() -> None:
    pauses = [[backoff_s(n) for _ in range(50)] for n in (1, 2, 3, 50)]
    assert all(max(a) < max(b) for a, b in pairwise(pauses))
    assert max(max(p) for p in pauses) <= 15
    assert all(len(set(p)) > 10 for p in pauses)


def test_every_setting_is_documented() -> None:
    text = (DOCS / "agent.md").read_text()
    for name, field in AgentSettings.model_fields.items():
        assert f"`{name}`" in text, name
        assert field.description
        assert field.description in text, name
