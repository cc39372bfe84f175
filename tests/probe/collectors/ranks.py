"""Run a training script as the ranks of a job, under the recorder as `muster run` sets it up, and read what they wrote."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from muster.probe.reader import LifeDir, Meta, discover

SCRIPTS = Path(__file__).parent / "scripts"
INJECT = Path(__file__).parents[3] / "service" / "muster" / "probe" / "inject"
JOB = "job"


def rows(life: LifeDir, table: str) -> list[dict[str, Any]]:
    """All rows of a table that its ring still holds."""
    reader = life.reader(table)
    batch = reader.read_new()
    reader.close()
    return [dict(zip(batch.columns, values, strict=True)) for values in zip(*batch.columns.values(), strict=True)]


@dataclass(frozen=True)
class Rank:
    """What one rank recorded, and what it printed."""

    life: LifeDir
    meta: Meta
    output: str

    @property
    def collectives(self) -> list[dict[str, Any]]:
        return rows(self.life, "python.comm_collective")

    @property
    def steps(self) -> list[dict[str, Any]]:
        return rows(self.life, "python.torch_step_timing")

    @property
    def events(self) -> list[dict[str, Any]]:
        return rows(self.life, "python.trace_event")

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        return rows(self.life, "python.checkpoint")

    @property
    def ops(self) -> Counter[str]:
        return Counter(r["op"] for r in self.collectives)

    @property
    def spans(self) -> Counter[str]:
        return Counter(r["name"] for r in self.events if r["record_type"] == "span_start")

    def only(self, op: str, **where: Any) -> dict[str, Any]:
        """The one row of an operation."""
        found = [r for r in self.collectives if r["op"] == op and all(r[k] == v for k, v in where.items())]
        assert len(found) == 1, (op, where, found)
        return found[0]

    def own_ms(self) -> float:
        """Median over the steps of what the rank itself took: step without the time blocked in communication."""
        full = [s for s in self.steps if s["phase"] is None]
        return median(s["step_duration_sec"] * 1e3 - s["comm_blocked_ms"] for s in full)


class Job:
    """The ranks of a job while they run."""

    def __init__(
        self, directory: Path, script: str, *args: str, ranks: int = 2, collect: str = "torch", **environ: str
    ) -> None:
        self.rings = directory / "rings"
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        base = {k: v for k, v in os.environ.items() if not k.startswith(("MUSTER_", "TORCHELASTIC"))}
        base |= {
            "MUSTER_JOB": JOB,
            "MUSTER_DIR": str(self.rings),
            "MUSTER_COLLECT": collect,
            "PYTHONPATH": str(INJECT),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
        } | environ
        self.processes = []
        self.logs = [directory / f"rank-{r}.log" for r in range(ranks)]
        for r, path in enumerate(self.logs):
            with path.open("wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-W", "ignore", str(SCRIPTS / script), *args],
                        env=base | {"RANK": str(r), "LOCAL_RANK": str(r)},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        cwd=directory,
                    )
                )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def wait(self, seconds: float = 60) -> None:
        """Until all ranks have ended well."""
        end = time.monotonic() + seconds
        for process in self.processes:
            assert process.wait(max(1.0, end - time.monotonic())) == 0, self.output()

    def output(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in self.logs)

    def read(self, job: str = JOB) -> list[Rank]:
        """The ranks, in order, as they stand now."""
        found = []
        for life in discover(self.rings, job):
            meta = life.meta()
            if meta is None:  # it has just begun
                continue
            found.append(Rank(life, meta, self.logs[life.rank].read_text(errors="replace")))
        return found


def run(directory: Path, script: str, *args: str, ranks: int = 2, collect: str = "torch") -> list[Rank]:
    """Run a script to its end. Nothing may go wrong in the recorder."""
    with Job(directory, script, *args, ranks=ranks, collect=collect) as job:
        job.wait()
        return checked(job.read(), ranks)


def run_several(directory: Path, *trainings: str, ranks: int = 2) -> list[list[Rank]]:
    """Run trainings one after the other in the same processes. Nothing may go wrong in the recorder."""
    with Job(directory, "several.py", *trainings, ranks=ranks) as job:
        job.wait()
        return [checked(job.read(f"job{number}"), ranks) for number in range(len(trainings))]


def checked(found: list[Rank], ranks: int) -> list[Rank]:
    assert [r.life.rank for r in found] == list(range(ranks))
    for rank in found:
        assert rank.life.errors() == {}, rank.life.messages()
        assert rank.life.in_flight().rows == 0
    return found
