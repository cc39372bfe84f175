"""What recording costs the training process: ns per row, collective, span and step, beside other ways to keep the same row.

    python bench/bench_recorder.py [--json]

Every figure is the best of several repeats in this one run (the machine's noise only ever adds). The files lie where the
recorder puts them: shared memory if there is any.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sqlite3
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster.probe as probe
from muster.probe.reader import discover
from muster.tables import COMM_COLLECTIVE

REPEATS = 7
NAMES = tuple(c.name for c in COMM_COLLECTIVE.columns)
ROW: tuple[Any, ...] = (
    None, 812, 812, None, 0, 8, "dp=0", "all_reduce", 0, 8, "[0,1,2,3,4,5,6,7]", "[1024,1024]", "float32", 4194304, 1.5, 0,
    "default_pg", 4711, 3, 1234, 1_796_118_000_000_000_000, None, 1_796_118_000_001_500_000, 1.5, "sync", None, None, None,
    None,
)  # fmt: skip


def best(call: Callable[[], object], number: int) -> float:
    """Nanoseconds per call, of the best repeat."""
    return min(timeit.repeat(call, number=number, repeat=REPEATS)) / number * 1e9


def comparisons(directory: Path, number: int) -> dict[str, float]:
    """Other ways to keep a row of python.comm_collective."""
    kept: list[dict[str, Any]] = []

    def as_dict() -> None:
        kept.append(dict(zip(NAMES, ROW, strict=True)))

    out = {"append a dict to a list (other processes see nothing)": best(as_dict, number)}
    kept.clear()
    with (directory / "rows.jsonl").open("w", buffering=1) as file:

        def as_line() -> None:
            file.write(json.dumps(dict(zip(NAMES, ROW, strict=True))) + "\n")

        out["write a JSON line, flushed per line"] = best(as_line, number // 4)
    database = sqlite3.connect(directory / "rows.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=OFF")
    database.execute("PRAGMA synchronous=OFF")
    database.execute(f"CREATE TABLE t ({', '.join(NAMES)})")
    insert = f"INSERT INTO t VALUES ({', '.join('?' * len(NAMES))})"
    out["insert into SQLite, no journal, no sync"] = best(lambda: database.execute(insert, ROW), number // 8)
    database.execute("BEGIN")
    out["the same in one open transaction (others see nothing)"] = best(lambda: database.execute(insert, ROW), number // 4)
    database.close()
    return out


def recorder_costs(number: int) -> dict[str, float]:
    """What the recorder's own calls cost."""
    recorder = probe.current()
    assert recorder is not None
    log, spans = recorder.collectives, recorder.spans
    group = log.group("default_pg", range(8))
    shape = (1024, 1024)
    small = probe.table("bench.small", a=int, b=float, c=int)
    write_small = recorder.custom("bench.small", {"a": int, "b": float, "c": int}).write
    wide = {f"c{i}": (float if i % 3 else int) for i in range(24)}
    write_wide = recorder.custom("bench.wide", wide).write
    write_text = recorder.custom("bench.text", {"a": int, "b": str}).write
    wide_row = tuple(float(i) if i % 3 else i for i in range(24))
    ready = log.begin("all_reduce", group, nbytes=4194304, shape=shape, dtype="float32")
    assert ready is not None
    rest = (
        *ready.numbers, 1.5, 4711, 3, ready.thread_id, ready.start_ns, None, ready.start_ns, 1.5, "sync", None, None, None,
        None,
    )  # fmt: skip
    ring = log._ring

    def synchronous() -> None:
        log.end(log.begin("all_reduce", group, nbytes=4194304, shape=shape, dtype="float32"))

    def asynchronous() -> None:
        op = log.begin("all_reduce", group, nbytes=4194304, shape=shape, dtype="float32", async_op=True)
        log.launched(op)
        log.wait_started(op)
        log.end(op, timing_source="wait")

    def scope() -> None:
        with probe.collective("all_reduce", nbytes=4194304):
            pass

    def span() -> None:
        spans.close(spans.open("forward", "forward"))

    def span_scope() -> None:
        with probe.span("forward", phase="forward"):
            pass

    costs = {
        "row of 3 numbers": best(lambda: write_small((1, 2.0, 3)), number),
        "row of 24 numbers": best(lambda: write_wide(wide_row), number),
        "row with a long text": best(lambda: write_text((1, "a text of thirty characters ok")), number),
        "row by column names (3)": best(lambda: small.row(a=1, b=2.0, c=3), number),
        "row of python.comm_collective (29 columns)": best(lambda: ring.write_prefixed(ready.prefix, rest), number),
        "collective, begin and end": best(synchronous, number),
        "collective, async: begin, launched, wait, end": best(asynchronous, number),
        "with probe.collective(…)": best(scope, number),
        "span, open and close (2 rows)": best(span, number),
        "with probe.span(…)": best(span_scope, number),
        "event": best(lambda: spans.event("hello"), number),
        "step boundary (3 rows)": best(lambda: probe.step(), max(number // 10, 1)),
    }
    log.drop(ready)
    return costs


def reading_cost(root: Path) -> float:
    """Nanoseconds per row for the agent's side, CPU of another process."""
    life = discover(root, "bench")[0]
    reader = life.reader(COMM_COLLECTIVE.full_name)
    began = time.perf_counter_ns()
    batch = reader.read_new()
    taken = (time.perf_counter_ns() - began) / max(batch.rows, 1)
    life.close()
    reader.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--number", type=int, default=20_000, help="calls per repeat")
    arguments = parser.parse_args()
    shared = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    try:
        began = time.perf_counter_ns()
        started = probe.start(job="bench", directory=str(root), rank=0, world_size=8, collect="none")
        start_ns = time.perf_counter_ns() - began
        if not started:
            sys.exit(f"the recorder did not start: {probe.SESSION.reason}")
        costs = {"an empty Python call, to compare": best(lambda: None, arguments.number)}
        costs |= recorder_costs(arguments.number)
        costs["start of the recorder"] = float(start_ns)
        costs["reading a row of python.comm_collective (agent)"] = reading_cost(root)
        if probe.errors():
            sys.exit(f"the recorder counted errors: {probe.errors()}")
        probe.stop()
        probe.step()
        costs["probe.step() while nothing is recorded"] = best(lambda: probe.step(), arguments.number)
        others = comparisons(root, arguments.number)
    finally:
        probe.stop()
        shutil.rmtree(root)
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), "recorder_ns": costs, "compared_ns": others}, indent=2))
        return
    print(f"Python {platform.python_version()}, {platform.machine()}; best of {REPEATS} x {arguments.number} calls")
    print("\nrecorder")
    for name, value in costs.items():
        print(f"  {name:<58}{value:>12,.0f} ns")
    print("\nthe 29 columns of a collective, kept in other ways")
    for name, value in others.items():
        print(f"  {name:<58}{value:>12,.0f} ns")
    row = costs["row of python.comm_collective (29 columns)"]
    slowest = others["insert into SQLite, no journal, no sync"]
    print(f"\na recorded row costs {slowest / row:.1f} times less than an SQLite insert that others can read")


if __name__ == "__main__":
    main()
