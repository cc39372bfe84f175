"""Fuzzes guard, planner and the agent's engine with mutated statements.

    python tests/fuzz/fuzz_sql.py --seconds 3600 --seed 1 --out findings/

One process draws, another runs; where that one dies or hangs, the statement is a finding and a new one goes on. Findings
are kept as one file each (kind and statement), the first of their kind. Ends with 1 where there is one.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import logging
import multiprocessing as mp
import resource
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fuzz.mutate import Mutator

HANG_SECONDS = 30.0
START_SECONDS = 120.0
ADDRESS_SPACE = 8 << 30
SAME_KIND = 3
"""So many of one kind are kept."""


def serve(pipe: Connection) -> None:
    """Runs in a process of its own: takes statements, gives verdicts."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    from fuzz.check import Checker

    checker = Checker()
    pipe.send("ready")
    try:
        while (sql := pipe.recv()) is not None:
            faulthandler.dump_traceback_later(HANG_SECONDS - 5)
            verdict = checker.check(sql)
            faulthandler.cancel_dump_traceback_later()
            pipe.send(verdict)
    finally:
        checker.close()


class Worker:
    """The process that runs statements, started anew where it ended."""

    def __init__(self) -> None:
        self._context = mp.get_context("spawn")
        self._start()
        self.restarts = 0

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        if not self._pipe.poll(START_SECONDS) or self._pipe.recv() != "ready":
            raise SystemExit("the checking process does not start")

    def check(self, sql: str) -> object:
        """A verdict, or the text of how the process ended."""
        try:
            self._pipe.send(sql)
            if self._pipe.poll(HANG_SECONDS):
                return self._pipe.recv()
            ended = f"hang of {HANG_SECONDS:.0f} s"
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join(10)
            ended = f"process ended with {self._process.exitcode}"
        self.close()
        self._start()
        self.restarts += 1
        return ended

    def close(self) -> None:
        self._process.kill()
        self._process.join(10)
        self._pipe.close()


def fuzz(seconds: float, seed: int, out: Path, *, replay: list[str] | None = None) -> tuple[int, Counter[str]]:
    """Returns how many statements were tried, and findings by kind."""
    out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    worker = Worker()
    mutator = None if replay is not None else Mutator(seed)
    outcomes: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    routes: Counter[str] = Counter()
    found: Counter[str] = Counter()
    slowest = 0.0
    tried = 0
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=0.5, disable=not console.is_terminal) as progress:
        task = progress.add_task("fuzz", total=seconds)
        shown = 0.0
        while (past := time.monotonic() - began) < seconds:
            if replay is not None and tried >= len(replay):
                break
            sql = mutator.draw() if mutator is not None else (replay or [])[tried]
            tried += 1
            verdict = worker.check(sql)
            if isinstance(verdict, str):
                findings = [(verdict, "")]
            else:
                findings = verdict.findings
                outcomes[verdict.outcome] += 1
                answers[verdict.agent] += 1
                routes[verdict.route] += 1
                slowest = max(slowest, verdict.plan_s)
            for kind, detail in findings:
                found[kind] += 1
                if found[kind] <= SAME_KIND:
                    _save(out, kind, detail, sql)
                    console.print(f"[red]{kind}[/red] {detail[:200]}", markup=True, highlight=False)
            progress.update(task, completed=past, description=f"{tried} statements, {sum(found.values())} findings")
            if not console.is_terminal and past - shown > 60:
                shown = past
                console.print(f"{past:.0f} s: {tried} statements, {sum(found.values())} findings")
    past = time.monotonic() - began
    worker.close()
    print(f"{tried} statements in {past:.0f} s, seed {seed}, {worker.restarts} restarts, slowest plan {slowest:.2f} s")
    for name, counts in (("planner", outcomes), ("agent", answers), ("routes", routes), ("findings", found)):
        print(f"  {name}: " + ", ".join(f"{k or 'no table'} {n}" for k, n in counts.most_common()))
    return tried, found


def _save(out: Path, kind: str, detail: str, sql: str) -> None:
    name = hashlib.sha256(f"{kind}\n{sql}".encode()).hexdigest()[:16]
    (out / f"{name}.json").write_text(
        json.dumps({"kind": kind, "detail": detail, "sql": sql}, indent=1, ensure_ascii=False)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--replay", type=Path, help="a folder of findings: try those again and nothing else")
    options = parser.parse_args()
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # hostile texts make it talk
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000_000
    print(f"seed {seed}", flush=True)
    replay = None
    if options.replay is not None:
        replay = [json.loads(p.read_text())["sql"] for p in sorted(options.replay.glob("*.json"))]
    _, found = fuzz(options.seconds, seed, options.out, replay=replay)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
