"""Everything of the gateway but health: SQL, registration, tokens, problems, the service itself."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pytest

from api.conftest import World
from muster.client import Client
from muster.errors import ConfigError, NotReady
from muster.gateway.auth import digest_of
from muster.gateway.settings import GatewaySettings, load_settings

TABLE = "python.torch_step_timing"
DOCS = Path(__file__).parent.parent.parent / "docs"


def test_a_query_answers_over_all_ranks_with_types_and_exactness(job: World) -> None:
    sql = f"SELECT _rank, count(*) AS n, max(step_duration_sec) FROM global.{TABLE} GROUP BY 1 ORDER BY 1"
    body = job.client.post("/jobs/j/query", json={"sql": sql}).json()
    assert [c["name"] for c in body["columns"]] == ["_rank", "n", "max(step_duration_sec)"]
    assert [c["type"] for c in body["columns"]] == ["BIGINT", "BIGINT", "DOUBLE"]
    assert [(r[0], r[1]) for r in body["rows"]] == [(0, 200), (1, 200), (2, 200), (3, 200)]
    assert body["coverage"]["complete"]


def test_numbers_in_json_keep_their_value(job: World) -> None:
    sql = (
        "SELECT 9007199254740993::BIGINT AS big, 1.10::DECIMAL(4,2) AS d, 'nan'::DOUBLE AS n, 'inf'::DOUBLE AS i,"
        " '-inf'::DOUBLE AS m, NULL AS z, [1, 2] AS l, TIMESTAMP '2026-01-02 03:04:05' AS t"
        f" FROM {TABLE} LIMIT 1"
    )
    (row,) = job.client.post("/jobs/j/query", json={"sql": sql}).json()["rows"]
    assert row == ["9007199254740993", "1.10", "NaN", "Infinity", "-Infinity", None, [1, 2], "2026-01-02T03:04:05"]


def test_parameters_are_bound_by_type(job: World) -> None:
    sql = f"SELECT count(*) FROM {TABLE} WHERE _rank = $r AND global_step <= $s"
    body = job.client.post("/jobs/j/query", json={"sql": sql, "params": {"r": 3, "s": 10}}).json()
    assert body["rows"] == [[10]]


def test_csv_and_arrow_by_accept(job: World) -> None:
    sql = {"sql": f"SELECT _rank, count(*) AS n FROM {TABLE} GROUP BY 1 ORDER BY 1"}
    text = job.client.post("/jobs/j/query", json=sql, headers={"Accept": "text/csv"})
    assert text.text.splitlines()[0] == '"_rank","n"'
    assert len(text.text.splitlines()) == 5
    arrow = job.client.post("/jobs/j/query", json=sql, headers={"Accept": "application/vnd.apache.arrow.stream"})
    assert pa.ipc.open_stream(io.BytesIO(arrow.content)).read_all().num_rows == 4


def test_more_rows_than_asked_for_are_an_error_and_never_cut(job: World) -> None:
    answer = job.client.post("/jobs/j/query", json={"sql": f"SELECT * FROM {TABLE}", "max_rows": 10})
    assert (answer.status_code, answer.json()["code"]) == (422, "over_budget")


def test_an_answer_of_too_many_bytes_is_refused() -> None:
    world = World(GatewaySettings(evaluate_s=0, max_answer_bytes=2000))
    with world.client:
        world.register()
        answer = world.client.post("/jobs/j/query", json={"sql": f"SELECT * FROM {TABLE}"})
        assert (answer.status_code, answer.json()["code"]) == (422, "over_budget")
        assert world.client.post("/jobs/j/query", json={"sql": f"SELECT count(*) FROM {TABLE}"}).status_code == 200


def test_a_partial_answer_is_refused_where_asked(job: World) -> None:
    job.silent.add("n0")
    sql = f"SELECT count(*) FROM {TABLE}"
    partial = job.client.post("/jobs/j/query", json={"sql": sql})
    assert partial.json()["rows"] == [[400]]
    assert partial.json()["coverage"]["complete"] is False
    refused = job.client.post("/jobs/j/query", json={"sql": sql, "on_partial": "fail"})
    assert refused.status_code == 502
    assert len(refused.json()["coverage"]["missing"]) == 2


@pytest.mark.parametrize(
    ("sql", "status"),
    [
        ("SELEC 1", 400),
        (f"SELECT nope FROM {TABLE}", 400),
        ("SELECT * FROM nope.nope", 400),
        (f"DELETE FROM {TABLE}", 400),
        ("SELECT * FROM read_csv('/etc/passwd')", 400),
        (f"SELECT getenv('HOME') FROM {TABLE}", 400),
        (f"SELECT CAST(_host AS INTEGER) FROM {TABLE}", 422),
        ("SELECT '" + "x" * 20_000 + "'", 400),
        ("", 400),
    ],
)
def test_bad_sql_is_a_problem_that_says_so(job: World, sql: str, status: int) -> None:
    for route in ("query", "explain"):
        answer = job.client.post(f"/jobs/j/{route}", json={"sql": sql})
        if route == "explain" and status == 422:
            continue
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"]


def test_explain_asks_nobody(job: World) -> None:
    job.silent |= {"n0", "n1"}
    body = job.client.post("/jobs/j/explain", json={"sql": f"SELECT count(*) FROM {TABLE}"}).json()
    assert body["plan"]["waves"]
    assert TABLE in body["tree"]


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"sql": 1}', b'{"sql": "SELECT 1", "extra": 1}', b'{"sql": "SELECT 1", "params": {"a b": 1}}', b""],
)
def test_a_body_that_does_not_fit_is_a_400_problem(job: World, body: bytes) -> None:
    answer = job.client.post("/jobs/j/query", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad_request"


def test_jobs_nodes_and_tables_are_listed(job: World) -> None:
    (found,) = job.client.get("/jobs").json()
    assert (found["job"], found["world_size"], found["statuses"]) == ("j", 4, {"running": 4})
    assert [r["rank"] for r in job.client.get("/jobs/j").json()["ranks"]] == [0, 1, 2, 3]
    assert [(n["node"], n["ranks"]) for n in job.client.get("/jobs/j/nodes").json()] == [("n0", [0, 1]), ("n1", [2, 3])]
    tables = {t["table"]: t for t in job.client.get("/jobs/j/tables").json()}
    assert tables[TABLE]["complete"]
    assert tables["python.comm_collective"]["ranks"] == []


def test_the_catalogue_is_served(world: World) -> None:
    listed = {d["id"] for d in world.client.get("/queries").json()}
    assert "job_health" in listed
    one = world.client.get("/queries/job_health").json()
    assert len(one["steps"]) >= 5
    assert world.client.get("/queries/nope").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("DELETE", "/jobs", 405),
        ("GET", "/jobs/nope", 404),
        ("GET", "/jobs/a%20b/health", 404),
        ("GET", "/jobs/..%2f..%2fetc/health", 404),
        ("PUT", "/jobs/j/nodes/a%20b", 400),
        ("DELETE", "/jobs/j/nodes/n9", 404),
        ("GET", "/jobs?x=1", 400),
    ],
)
def test_every_error_is_a_problem(job: World, method: str, path: str, status: int) -> None:
    answer = job.client.request(method, path, json={} if method == "PUT" else None)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "code", "detail"} <= answer.json().keys()


def test_a_body_too_large_is_413(job: World) -> None:
    big = b'{"sql": "' + b"x" * (5 << 20) + b'"}'
    answer = job.client.post("/jobs/j/query", content=big, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")

    def chunks() -> Iterator[bytes]:
        for _ in range(6):
            yield b"x" * (1 << 20)

    streamed = job.client.post("/jobs/j/query", content=chunks(), headers={"Content-Type": "application/json"})
    assert (streamed.status_code, streamed.json()["code"]) == (413, "too_large")


def test_a_registration_from_elsewhere_is_refused(world: World) -> None:
    body = world.registration(0) | {"addr": "http://192.0.2.1:80"}
    answer = world.client.put("/jobs/j/nodes/n0", json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "probe_addresses" in answer.json()["hint"]


@pytest.mark.parametrize(
    ("member", "value"),
    [("now", "2026-01-01T00:00:00"), ("started_at", "2026-01-01T00:00:00"), ("pid", 2**70), ("local_rank", 2**70)],
)
def test_a_malformed_registration_is_a_400_and_harms_nobody(job: World, member: str, value: object) -> None:
    body = job.registration(0)
    if member == "now":
        body[member] = value
    else:
        body["ranks"][0][member] = value
    assert job.client.put("/jobs/bad/nodes/n0", json=body).status_code == 400
    assert job.client.get("/jobs").status_code == 200
    assert job.client.get("/jobs/j/health").status_code == 200


def test_livez_readyz_and_metrics(job: World) -> None:
    assert job.client.get("/livez").text == "ok\n"
    assert job.client.get("/readyz").json() == {"status": "ready", "jobs": 1, "state": "memory"}
    job.client.get("/jobs/j/health")
    text = job.client.get("/metrics").text
    assert re.search(r'muster_http_requests_total\{method="GET",route="/jobs/\{job\}/health",status="200"\} 1\.0', text), (
        text
    )
    assert 'muster_evaluations_total{status="pass",trigger="request"} 1.0' in text


def test_answers_carry_security_headers(world: World) -> None:
    headers = world.client.get("/livez").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]


class Tokens:
    READ = "read-secret-0123456789"
    ALL = "all-secret-0123456789"
    BOUND = "bound-secret-0123456789"


@pytest.fixture
def guarded() -> Iterator[World]:
    tokens = [
        {"name": "read", "sha256": digest_of(Tokens.READ), "scopes": ["read"]},
        {"name": "all", "sha256": digest_of(Tokens.ALL), "scopes": ["read", "query", "register"]},
        {"name": "bound", "sha256": digest_of(Tokens.BOUND), "scopes": ["read", "query"], "jobs": ["other"]},
    ]
    world = World(GatewaySettings(evaluate_s=0, tokens=tokens))  # type: ignore[arg-type]
    with world.client:
        world.register(headers=bearer(Tokens.ALL))
        yield world


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_scopes_and_jobs_of_tokens_hold(guarded: World) -> None:
    sql = {"sql": f"SELECT count(*) FROM {TABLE}"}
    get, post, put = guarded.client.get, guarded.client.post, guarded.client.put
    assert get("/jobs/j/health").status_code == 401
    assert get("/jobs/j/health").headers["www-authenticate"] == "Bearer"
    assert get("/jobs/j/health", headers=bearer("wrong")).status_code == 401
    assert get("/jobs/j/health", headers={"Authorization": f"Basic {Tokens.READ}"}).status_code == 401
    assert get("/jobs/j/health", headers=bearer(Tokens.READ)).status_code == 200
    assert post("/jobs/j/query", json=sql, headers=bearer(Tokens.READ)).status_code == 403
    assert post("/jobs/j/query", json=sql, headers=bearer(Tokens.ALL)).status_code == 200
    assert put("/jobs/j/nodes/n0", json=guarded.registration(0), headers=bearer(Tokens.READ)).status_code == 403
    assert get("/jobs/j/health", headers=bearer(Tokens.BOUND)).status_code == 403
    assert get("/jobs", headers=bearer(Tokens.BOUND)).json() == []
    assert [j["job"] for j in get("/jobs", headers=bearer(Tokens.READ)).json()] == ["j"]
    assert get("/metrics").status_code == 401
    assert get("/livez").status_code == 200


def test_a_token_is_not_asked_for_before_the_job_is_known_to_be_allowed(guarded: World) -> None:
    """Whether a job exists is not told to those who may not see it."""
    assert guarded.client.get("/jobs/nope/health").status_code == 401
    assert guarded.client.get("/jobs/nope/health", headers=bearer(Tokens.BOUND)).status_code == 403


def test_beyond_loopback_it_does_not_start_without_tokens() -> None:
    with pytest.raises(ConfigError) as error:
        load_settings(listen="0.0.0.0:8700")
    assert "tokens" in error.value.detail


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LISTEN", "nonsense"),
        ("EVALUATE_S", "-1"),
        ("MEMORY_LIMIT", "lots"),
        ("PROBE_ADDRESSES", '["not a host!"]'),
        ("TOKENS", '[{"name": "x", "sha256": "short", "scopes": ["read"]}]'),
        ("TOKENS", '[{"name": "x", "secret": "short", "scopes": ["read"]}]'),
    ],
)
def test_a_wrong_setting_is_said_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"MUSTER_GATEWAY_{name}", value)
    with pytest.raises(ConfigError) as error:
        load_settings()
    assert name.lower() in error.value.detail or name.lower().rstrip("s") in error.value.detail


@pytest.mark.parametrize(("ending", "text"), [("toml", "heartbeat_s = 3.5\n"), ("yaml", "heartbeat_s: 3.5\n")])
def test_settings_come_from_a_file_under_environment_under_flags(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str, text: str
) -> None:
    file = tmp_path / f"gateway.{ending}"
    file.write_text(text)
    monkeypatch.setenv("MUSTER_GATEWAY_FILE", str(file))
    assert load_settings().heartbeat_s == 3.5
    monkeypatch.setenv("MUSTER_GATEWAY_HEARTBEAT_S", "4.5")
    assert load_settings().heartbeat_s == 4.5
    assert load_settings(heartbeat_s=5.5).heartbeat_s == 5.5


def test_every_setting_is_documented() -> None:
    text = (DOCS / "settings.md").read_text()
    for name, field in GatewaySettings.model_fields.items():
        assert f"`{name}`" in text, name
        assert field.description
        assert field.description in text, name


def test_every_route_is_documented(world: World) -> None:
    text = (DOCS / "api.md").read_text()
    for path in world.client.get("/openapi.json").json()["paths"]:
        assert path in text, path


ODD = """SELECT 'infinity'::DATE AS d, '-infinity'::TIMESTAMP AS t, '290000-01-01'::DATE AS far,
         INTERVAL '1 month 2 days' AS i, '101'::BIT AS b, [make_timestamp_ns(1)] AS n, {'a': 'infinity'::DATE} AS s"""


def test_values_that_python_does_not_have_are_texts_in_json(job: World) -> None:
    answer = job.client.post("/jobs/j/query", json={"sql": ODD})
    assert answer.status_code == 200
    day, moment, far, interval, bits, nanoseconds, struct = answer.json()["rows"][0]
    assert (day, moment, far) == ("Infinity", "-Infinity", "105200797 days since 1970-01-01")
    assert interval == {"months": 1, "days": 2, "nanoseconds": 0}
    assert nanoseconds == ["1970-01-01T00:00:00.000000001"]
    assert struct == {"a": "Infinity"}
    assert isinstance(bits, str)


def test_values_that_arrow_does_not_write_are_texts_in_csv(job: World) -> None:
    answer = job.client.post("/jobs/j/query", json={"sql": ODD}, headers={"Accept": "text/csv"})
    assert answer.status_code == 200
    assert "Infinity" in answer.text
    assert "-Infinity" in answer.text


def test_metrics_show_a_bound_token_its_own_jobs_only(guarded: World) -> None:
    guarded.register("other", headers=bearer(Tokens.ALL))
    metrics = guarded.app.state.parts.metrics
    for name in ("j", "other"):
        metrics.job_status.labels(name, "pass").set(1)
    everything = guarded.client.get("/metrics", headers=bearer(Tokens.READ)).text
    assert 'job="j"' in everything
    bound = guarded.client.get("/metrics", headers=bearer(Tokens.BOUND)).text
    assert 'job="other"' in bound
    assert 'job="j"' not in bound
    assert "muster_http_requests" in bound


def test_an_answer_of_something_else_is_not_taken_for_a_gateway() -> None:
    """A proxy's own page, over a real connection."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>busy</html>")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Client(f"http://127.0.0.1:{server.server_port}") as client:
            for call in (lambda: client.health("j"), client.jobs):
                with pytest.raises(NotReady, match="no gateway of Muster"):
                    call()
        server.shutdown()
