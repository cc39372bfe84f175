"""docker-compose.yml: valid, and its very commands give a verdict. No container engine is needed: the commands run as
processes on loopback, with host names and ports mapped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from harness import free_port

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docker-compose.yml"
SECRETS = {"MUSTER_TOKEN": "a-token-for-the-test", "MUSTER_PROBE_TOKEN": "another-for-the-probes"}
pytestmark = pytest.mark.timeout(120)


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def test_the_file_fits_the_compose_specification() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_service_is_checked_and_unprivileged_and_nodes_have_shared_memory() -> None:
    for name, service in compose()["services"].items():
        assert service["healthcheck"]["test"], name
        assert service["cap_drop"] == ["ALL"], name
        if name != "gateway":
            assert int(service["shm_size"].removesuffix("m")) >= 2 * 8 * 4, name


def test_no_secret_has_a_default() -> None:
    names = set(re.findall(r"\$\{(\w+)", FILE.read_text()))
    assert names == set(SECRETS)
    assert all(f"${{{name}:?" in FILE.read_text() for name in names)


class Composed:
    """The services as processes. `gateway`, `node-a` and `node-b` are names of ports on 127.0.0.1."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = {"gateway": free_port(), "node-a": free_port(), "node-b": free_port()}
        self.url = f"http://127.0.0.1:{self.ports['gateway']}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, service: Mapping[str, Any]) -> None:
        words = [self._mapped(name, w) for w in service["command"]]
        words = [sys.executable if w == "python" else w for w in words]
        assert words[0] == "muster"
        words[:1] = [sys.executable, "-m", "muster.cli"]
        own = {k: self._mapped(name, _filled(v)) for k, v in service.get("environment", {}).items()}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")}
        rings = str(self.directory / f"shm-{name}")
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                words, env=inherited | own | {"MUSTER_DIR": rings}, stdout=log, stderr=log, cwd=self.directory
            )
        self._processes.append(process)

    def get(self, path: str) -> httpx.Response:
        token = {"Authorization": f"Bearer {SECRETS['MUSTER_TOKEN']}"}
        return httpx.get(self.url + path, headers=token, timeout=20, trust_env=False)

    def stop(self) -> None:
        for process in psutil.process_iter():
            try:
                if process.environ().get("MUSTER_DIR", "").startswith(str(self.directory)):
                    process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        for child in self._processes:
            child.wait()

    def logs(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-2000:]}" for p in self.directory.glob("*.log"))

    def _mapped(self, service: str, text: str) -> str:
        text = text.replace("0.0.0.0:8700", f"0.0.0.0:{self.ports['gateway']}")
        text = text.replace("0.0.0.0:8701", f"0.0.0.0:{self.ports.get(service, 0)}")
        for name, port in self.ports.items():
            text = text.replace(f"http://{name}:870{0 if name == 'gateway' else 1}", f"http://127.0.0.1:{port}")
        text = text.replace('["node-a", "node-b"]', '["127.0.0.1"]')
        return text.replace("/state/", f"{self.directory}/")


def _filled(text: str) -> str:
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda m: SECRETS[m[1]], str(text))


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    running = Composed(tmp_path)
    try:
        yield running
    finally:
        running.stop()


def test_its_commands_give_a_verdict_on_both_jobs(composed: Composed) -> None:
    services = compose()["services"]
    composed.start("gateway", services["gateway"])
    _until(lambda: composed.get("/readyz").status_code == 200, 30, composed)
    for name in ("node-a", "node-b"):
        composed.start(name, services[name])
    _until(lambda: _step(composed, "job-a") > 60 and _step(composed, "job-b") > 60, 60, composed)
    a, b = composed.get("/jobs/job-a/health").json(), composed.get("/jobs/job-b/health").json()
    assert (a["coverage"]["answered"], a["phase"]) == (2, "running"), a
    assert {r for f in a["findings"] for r in f["ranks"]} == set(), a["findings"]  # a busy machine may slow all together
    assert b["status"] in ("warn", "fail"), b
    assert {r for f in b["findings"] for r in f["ranks"]} == {1}, b["findings"]
    assert httpx.get(composed.url + "/jobs", trust_env=False).status_code == 401


def _step(composed: Composed, job: str) -> int:
    answer = composed.get(f"/jobs/{job}/health")
    return int(answer.json().get("step") or 0) if answer.status_code in (200, 503) else 0


def _until(condition: Any, seconds: float, composed: Composed) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < end, composed.logs()
        time.sleep(0.3)
