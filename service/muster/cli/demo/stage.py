"""The demo's processes: a gateway, an agent, and the ranks. Leaving the context ends them all and removes their files."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from muster.cli.demo.fault import Fault
from muster.cli.demo.network import listen
from muster.client import Client
from muster.errors import MusterError, NotReady

JOB = "demo"
_GRACE_S = 3.0


class Stage:
    """Everything has its own private directory and free ports."""

    def __init__(self, ranks: int, fault: Fault) -> None:
        self.ranks = ranks
        self.fault = fault
        self.workers: list[subprocess.Popen[bytes]] = []
        self._services: list[subprocess.Popen[bytes]] = []
        self._directory = Path(tempfile.gettempdir()) / f"muster-demo-{secrets.token_hex(6)}"
        listener = listen()
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.close()
        self.client = Client(self.url, timeout=30.0)

    def __enter__(self) -> Self:
        try:
            self._directory.mkdir(mode=0o700)
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    def step(self) -> int:
        """Newest step of the job; 0 before there is one."""
        try:
            rows = self.client.query(JOB, "SELECT max(last_global_step) FROM process.rank").rows
        except MusterError:
            return 0
        return int(rows[0][0] or 0)

    def strike(self) -> None:
        """Inject the fault."""
        if self.fault.rank is not None:
            self.fault.strike(self.workers[self.fault.rank].pid)

    def check(self) -> None:
        """Raises NotReady when a service has ended, with the end of its log."""
        for process in self._services:
            if process.poll() is not None:
                logs = "\n".join(p.read_text(errors="replace")[-1500:] for p in sorted(self._directory.glob("*.log")))
                raise NotReady(f"a service of the demo ended with code {process.returncode}:\n{logs}")

    def _start(self) -> None:
        gateway = ["gateway", "--listen", self.url.removeprefix("http://"), "--evaluate-s", "2"]
        self._services.append(self._muster("gateway", gateway))
        self._wait(self._gateway_answers, "the gateway")
        agent = ["agent", "--job", JOB, "--gateway", self.url, "--node", "demo-node"]
        self._services.append(self._muster("agent", agent))
        listener = listen()
        os.set_inheritable(listener.fileno(), True)
        port = listener.getsockname()[1]
        for rank in range(self.ranks):
            words = [sys.executable, "-m", "muster.cli.demo.worker", "--port", str(port)]
            words += ["--slow-ms", str(self.fault.slow_ms(rank))]
            passed: Sequence[int] = ()
            if rank == 0:
                words += ["--listen-fd", str(listener.fileno())]
                passed = (listener.fileno(),)
            self.workers.append(self._spawn(f"rank-{rank}", words, passed, RANK=str(rank), WORLD_SIZE=str(self.ranks)))
        listener.close()

    def _gateway_answers(self) -> bool:
        try:
            self.client.jobs()
        except MusterError:
            return False
        return True

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > end:
                raise NotReady(f"{what} of the demo did not start within {seconds:.0f} s.")
            time.sleep(0.05)

    def _muster(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        return self._spawn(name, [sys.executable, "-m", "muster.cli", *words])

    def _spawn(
        self, name: str, words: Sequence[str], passed: Sequence[int] = (), **environ: str
    ) -> subprocess.Popen[bytes]:
        launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_") and k not in launcher}
        own = {
            "MUSTER_JOB": JOB,
            "MUSTER_DIR": str(self._directory / "rings"),
            "MUSTER_NODE": "demo-node",
            "MUSTER_COLLECT": "none",
        }
        if "RANK" in environ:
            own["LOCAL_RANK"] = environ["RANK"]
        with (self._directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - our own commands
                list(words),
                env=inherited | own | environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=tuple(passed),
                start_new_session=True,
            )

    def _end(self) -> None:
        self.client.close()
        for worker in self.workers:
            worker.send_signal(signal.SIGKILL)  # also ends a stopped one
        for service in self._services:
            service.terminate()
        end = time.monotonic() + _GRACE_S
        for process in (*self.workers, *self._services):
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
