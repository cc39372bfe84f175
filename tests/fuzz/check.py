"""What holds for any statement: guard, planner and the agent's engine give an answer or a clear error, soon and small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import orjson
import pyarrow as pa

from muster.errors import MusterError
from muster.model import ColumnType
from muster.probe.agent.agent import Agent
from muster.probe.agent.snapshot import Node
from muster.probe.agent.store import Store
from muster.protocol import QueryRequest, SubQuery
from muster.sql.guard import SHARD, guard
from muster.sql.plan import Catalogue, Plan, Statement
from muster.sql.planner import Planner
from muster.sql.scalars import substitute
from muster.tables import REGISTRY

PLAN_SECONDS = 2.0
PLAN_BYTES = 256 << 20
AGENT_MS = 1000
AGENT_OVER_SECONDS = 1.5
"""How much more than its deadline an agent may compute. All times are of the processor: the machine may be busy."""
AGENT_MEMORY = "256MB"
AGENT_BYTES = 700 << 20
"""Peak above what was there before: the engine's limit, and the same again for what it does not count."""
REFUSED_EACH = 25
"""An agent is asked every statement that its guard lets through, and one in so many of the others."""
RECORD = """
import sys
import muster.probe as probe
assert probe.start(), probe.errors()
for i in range(1, 41):
    with probe.collective(("all_reduce", "barrier", "it's", "\\u65e5%_")[i % 4], nbytes=i * 1000, seq=i):
        pass
    probe.step()
"""


@dataclass
class Verdict:
    """What became of one statement. `findings` are (kind, detail); empty is as it should be."""

    outcome: str = ""
    agent: str = "-"
    route: str = ""
    findings: list[tuple[str, str]] = field(default_factory=list)
    plan_s: float = 0.0
    agent_s: float = 0.0


class Checker:
    """Holds a planner, and an agent's store over what two recorded ranks left behind."""

    def __init__(self) -> None:
        tables = {
            name: tuple(ColumnType(c.name, c.type) for c in table.columns)
            for name, table in REGISTRY.items()
            if table.scope != "gateway"
        }
        self._catalogue = Catalogue(tables)
        self._names = [*tables, "cluster.nodes"]
        self._planner = Planner(cached_plans=4)
        self._directory = tempfile.TemporaryDirectory(prefix="fuzz")
        for rank in range(2):
            _record(Path(self._directory.name), rank)
        self._store = Store(
            [Path(self._directory.name)],
            Node("j", "n0", "n0", "http://127.0.0.1:1"),
            rows_per_table=10_000,
            memory_limit=AGENT_MEMORY,
        )
        self._agent = Agent(self._store)
        self._checked = 0

    def close(self) -> None:
        self._store.close()
        self._directory.cleanup()

    def check(self, sql: str) -> Verdict:
        verdict = Verdict()
        base = _memory(reset=True)
        plan, passed = self._plan(sql, verdict)
        grown = _memory(reset=False) - base
        if grown > PLAN_BYTES:
            verdict.findings.append(("plan memory", f"{grown >> 20} MiB"))
        if plan is not None:
            self._fragments(plan, verdict)
        self._checked += 1
        if passed or self._checked % REFUSED_EACH == 0:
            self._ask(sql, verdict)
        return verdict

    def _plan(self, sql: str, verdict: Verdict) -> tuple[Plan | None, bool]:
        """The plan, if there is one; and whether an agent's guard lets the statement through."""
        passed = None
        for limits in (None, SHARD):
            passed, _ = _timed(
                "guard" if limits is None else "shard guard",
                verdict,
                lambda limits=limits: guard(sql, tables=self._names, **({"limits": limits} if limits else {})),
            )
        plan, took = _timed(
            "planner",
            verdict,
            lambda: self._planner.plan([Statement("q", sql, params={"step_window": 5, "k": 2, "x": "a"})], self._catalogue),
        )
        verdict.plan_s = took
        if plan is not None:
            verdict.outcome = "planned"
            verdict.route = "+".join(sorted({str(f.route) for f in plan.fragments}))
        return plan, passed is not None

    def _fragments(self, plan: Plan, verdict: Verdict) -> None:
        """What a gateway would send is let through by the agents."""
        types = {s.id: s.type for w in plan.waves for s in w.scalars}
        for fragment in plan.fragments:
            sql = substitute(fragment.sql, {n: (None, types[n]) for n in fragment.scalars})
            try:
                guard(sql, limits=SHARD, tables=self._names)
            except MusterError as error:
                verdict.findings.append(("fragment refused", f"{error.detail} {sql}"))
            except Exception as error:
                verdict.findings.append((f"fragment {type(error).__name__} {_shape(str(error))}", sql))

    def _ask(self, sql: str, verdict: Verdict) -> None:
        base = _memory(reset=True)
        used = time.process_time()
        query = SubQuery(id="q", sql=sql, deadline_ms=AGENT_MS, max_rows=100_000, max_bytes=64 << 20)
        request = QueryRequest(queries=[query], deadline_ms=AGENT_MS)
        try:
            stream = anyio.run(self._agent.answer, request, threading.Event())
        except Exception as error:
            verdict.findings.append((f"agent {type(error).__name__}", str(error)))
            return
        verdict.agent_s = time.process_time() - used
        grown = _memory(reset=False) - base
        meta = pa.ipc.open_stream(stream).schema.metadata
        problem = orjson.loads(meta[b"error"]) if b"error" in meta else None
        verdict.agent = "answered" if problem is None else problem["code"]
        detail = "" if problem is None else str(problem["detail"])
        if problem is not None and problem["status"] >= 500 and problem["code"] != "deadline_exceeded":
            if re.search(r"INTERNAL|FATAL|invalidated", detail) or not re.search(r"memory|too large|maximum", detail, re.I):
                verdict.findings.append(("agent " + _shape(detail), detail))
            if "invalidated" in detail or "FATAL" in detail:
                raise SystemExit(3)
        if verdict.agent_s > AGENT_MS / 1000 + AGENT_OVER_SECONDS:
            verdict.findings.append(("agent late", f"{verdict.agent_s:.1f} s, then {verdict.agent}"))
        if grown > AGENT_BYTES:
            verdict.findings.append(("agent memory", f"{grown >> 20} MiB, then {verdict.agent}"))


def _timed(stage: str, verdict: Verdict, call: Callable[[], object]) -> tuple[object, float]:
    """A MusterError of the request is the other right outcome; the planner's is what counts as the statement's."""
    began = time.process_time()
    made = None
    try:
        made = call()
    except MusterError as error:
        if not 400 <= error.status < 500:
            verdict.findings.append((f"{stage} {error.status} {_shape(error.detail)}", error.detail))
        verdict.outcome = error.code
    except Exception as error:
        verdict.outcome = "crash"
        verdict.findings.append((f"{stage} {type(error).__name__} {_shape(str(error))}", str(error)))
    took = time.process_time() - began
    if took > PLAN_SECONDS:
        verdict.findings.append((f"{stage} slow", f"{took:.1f} s"))
    return made, took


def _shape(text: str) -> str:
    """A message without what differs from case to case."""
    return re.sub(r"\s+", " ", re.sub(r"\"[^\"]*\"|'[^']*'|\d+", "…", text))[:60]


def _memory(*, reset: bool) -> int:
    """Bytes resident now (after a reset of the peak), or at most since then."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:" if reset else "VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def _record(directory: Path, rank: int) -> None:
    environ = {
        **os.environ,
        "MUSTER_JOB": "j",
        "MUSTER_DIR": str(directory),
        "MUSTER_GENERATION": "g",
        "MUSTER_COLLECT": "none",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
    }
    subprocess.run([sys.executable, "-c", RECORD], env=environ, check=True, timeout=60)
