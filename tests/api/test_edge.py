"""What every request meets first: the host it names, its parameters; and what never leaves: telemetry, insides of a bug."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from api.conftest import World
from muster.errors import ConfigError
from muster.gateway.auth import digest_of
from muster.gateway.middleware import host_of
from muster.gateway.settings import GatewaySettings, load_settings
from muster.registry.store import Store

SECRET = "a-secret-of-the-test-0123"


@pytest.mark.parametrize("host", ["127.0.0.1:8700", "localhost", "LOCALHOST:1", "[::1]:8700", "127.9.9.9"])
def test_a_request_addressed_to_loopback_is_answered(world: World, host: str) -> None:
    assert world.client.get("/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example:8700", "127.0.0.1.evil.example", "169.254.169.254", "gw.cluster.local"])
@pytest.mark.parametrize("path", ["/jobs", "/livez", "/nope"])
def test_a_request_addressed_to_another_host_is_refused(world: World, host: str, path: str) -> None:
    answer = world.client.get(path, headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "hosts" in answer.json()["hint"]


def allowed(host: str, **settings: Any) -> bool:
    found = GatewaySettings(**settings).addressed_as()
    return found is None or found.allows(host)


def test_the_setting_hosts_adds_names_networks_and_domains() -> None:
    hosts = ("muster.example", "10.0.0.0/8", ".cluster.local")
    for host in ("muster.example", "10.1.2.3", "gw.cluster.local", "localhost"):
        assert allowed(host, hosts=hosts)
    assert not allowed("evil.example", hosts=hosts)


def test_beyond_loopback_hosts_are_checked_once_the_setting_names_some() -> None:
    tokens = ({"name": "a", "sha256": digest_of(SECRET), "scopes": ["read"]},)
    assert allowed("gateway", listen="0.0.0.0:8700", tokens=tokens)
    assert not allowed("gateway", listen="0.0.0.0:8700", tokens=tokens, hosts=("muster.example",))
    assert allowed("10.0.0.5", listen="10.0.0.5:8700", tokens=tokens, hosts=("muster.example",))


def test_an_entry_of_hosts_that_is_none_is_said_by_name() -> None:
    with pytest.raises(ConfigError, match="hosts"):
        load_settings(hosts=("not a host!",))


@pytest.mark.parametrize(
    ("header", "host"),
    [(b"a:1", "a"), (b"a", "a"), (b"[::1]:8700", "::1"), (b"[::1]", "::1"), (b"127.0.0.1:80", "127.0.0.1"), (b"", "")],
)
def test_the_host_of_a_header_is_that_without_its_port(header: bytes, host: str) -> None:
    assert host_of(header) == host


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/livez"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("GET", "/queries"),
        ("GET", "/queries/job_health"),
        ("GET", "/jobs"),
        ("POST", "/jobs/j/query"),
        ("POST", "/jobs/j/explain"),
        ("PUT", "/jobs/j/nodes/n0"),
        ("DELETE", "/jobs/j/nodes/n0"),
    ],
)
def test_an_unknown_parameter_is_a_400_that_names_it_on_every_route(job: World, method: str, path: str) -> None:
    body = job.registration(0) if method == "PUT" else {"sql": "SELECT 1"}
    answer = job.client.request(method, f"{path}?deadlin=4", json=None if method in ("GET", "DELETE") else body)
    assert (answer.status_code, answer.json()["code"], answer.json()["parameter"]) == (400, "parameter", "deadlin")
    assert answer.json()["hint"]


def test_the_served_document_says_which_operations_need_a_token(world: World) -> None:
    served = world.client.get("/openapi.json").json()
    assert served["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert served["paths"]["/jobs/{job}/health"]["get"]["security"] == [{"token": []}, {}]
    assert served["paths"]["/livez"]["get"]["security"] == []
    assert served == world.client.get("/openapi.json").json()


def test_telemetry_is_off_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    config = World(GatewaySettings(evaluate_s=0)).app._telemetry
    assert not any(config[k] for k in ("tracing", "metrics", "logs", "operation_spans", "auto_configure"))


def test_a_bug_is_a_500_that_tells_nothing_of_the_inside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(f"/private/path {SECRET}")

    monkeypatch.setattr(world.app.state.parts.registry, "jobs", broken)
    answer = world.client.get("/jobs", headers={"Authorization": f"Bearer {SECRET}"})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "internal"
    for inside in (SECRET, "/private", "RuntimeError", "Traceback", ".py"):
        assert inside not in answer.text


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads that have written to a state file."""
    seen: list[int] = []
    write = Store._write

    def noted(store: Store, sql: str, values: tuple[str, ...]) -> None:
        seen.append(threading.get_ident())
        write(store, sql, values)

    monkeypatch.setattr(Store, "_write", noted)
    return seen


def test_the_state_file_is_not_written_on_the_event_loop(tmp_path: Path, writers: list[int]) -> None:
    made = World(GatewaySettings(evaluate_s=0, state=tmp_path / "s.db"))
    loops: list[int] = []
    with made.client as client:
        assert client.portal is not None
        loops.append(client.portal.call(threading.get_ident))
        made.register()
        client.portal.call(made.app.state.parts.evaluator.once)
        assert client.delete("/jobs/j/nodes/n0").status_code == 204
    assert len(writers) >= 4  # two nodes, a verdict, a node that leaves
    assert not set(writers) & set(loops)
    reader = sqlite3.connect(tmp_path / "s.db")
    assert reader.execute("SELECT node FROM nodes").fetchall() == [("n1",)]
    reader.close()
