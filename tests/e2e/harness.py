"""Run a real job under Muster: a gateway, `muster run -- torchrun …` (which starts the agent), and questions over HTTP.

Everything runs as processes of its own on loopback, with its own directory; leaving the context ends them all.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil

TRAIN = Path(__file__).parent / "train" / "train.py"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


class Stack:
    """A gateway and the jobs that report to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rings = directory / "rings"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def __enter__(self) -> Stack:
        try:
            self._start_gateway()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.client.close()
        # Stopped and orphaned ranks carry the directory in their environment: find them by it.
        for p in psutil.process_iter():
            try:
                if p.environ().get("MUSTER_DIR") == str(self.rings) and p.pid != os.getpid():
                    p.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        for child in self._processes:
            child.kill()
            child.wait()

    def restart_gateway(self) -> None:
        """Kill the gateway and start another with the same state."""
        self._gateway.kill()
        self._gateway.wait()
        self._start_gateway()

    def _start_gateway(self) -> None:
        state = self.directory / "state.db"
        flags = ["gateway", "--listen", f"127.0.0.1:{self.port}", "--state", str(state)]
        self._gateway = self.spawn("gateway", flags)
        self.wait(self._alive, 60, "the gateway to be ready")

    def spawn(self, name: str, args: Sequence[str], **env: str) -> subprocess.Popen[bytes]:
        """Start `muster <args>` with its output in `<name>.log`."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")}
        environ |= {"MUSTER_DIR": str(self.rings), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"} | env
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "muster.cli", *args],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environ,
                cwd=self.directory,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def torchrun(self, job: str, *train_args: str, ranks: int = 4, node: str = "n0") -> subprocess.Popen[bytes]:
        """Start a real torchrun job of `train.py` under `muster run`."""
        return self.spawn(
            f"run-{job}",
            [
                *("run", "--job", job, "--gateway", self.url, "--node", node, "--"),
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
                *(str(TRAIN), *train_args),
            ],
        )

    def health(self, job: str, **params: Any) -> tuple[int, dict[str, Any]]:
        """One request: HTTP status and body."""
        answer = self.client.get(f"/jobs/{job}/health", params=params)
        body: dict[str, Any] = answer.json()
        return answer.status_code, body

    def query(self, job: str, sql: str) -> list[list[Any]]:
        answer = self.client.post(f"/jobs/{job}/query", json={"sql": sql})
        assert answer.status_code == 200, answer.text
        rows: list[list[Any]] = answer.json()["rows"]
        return rows

    def until(
        self, job: str, accept: Callable[[int, dict[str, Any]], bool], seconds: float, **params: Any
    ) -> tuple[int, dict[str, Any]]:
        """Ask every half second until the answer is accepted; fails with the last answer and the logs."""
        end = time.monotonic() + seconds
        while True:
            status, body = self.health(job, **params)
            if "coverage" in body and accept(status, body):
                return status, body
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s; last answer {status}: {body}\n{self.logs()}")
            time.sleep(0.5)

    def steps(self, job: str) -> int:
        """Newest global step that any rank has completed; -1 before there is one."""
        answer = self.client.post(f"/jobs/{job}/query", json={"sql": "SELECT max(last_global_step) FROM process.rank"})
        if answer.status_code != 200:
            return -1
        value = answer.json()["rows"][0][0]
        return -1 if value is None else int(value)

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds} s for {what}\n{self.logs()}")
            time.sleep(0.2)

    def logs(self) -> str:
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)

    def _alive(self) -> bool:
        try:
            return self.client.get("/livez").status_code == 200
        except httpx.TransportError:
            return False
