"""The steps of a diagnosis move a small share of the rows' bytes, in two round trips, and give what one DuckDB gives.

The job and the figures are those of `bench/bench_bytes.py`, smaller: 64 ranks with 2,000 rows each.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pyarrow as pa
import pytest

from muster.federation.nodes import cluster_nodes
from oracle import Oracle, differences


def _bench() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "bench_bytes.py"
    spec = importlib.util.spec_from_file_location("bench_bytes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the types of their fields
    spec.loader.exec_module(module)
    return module


bench = _bench()
SIZE = bench.Size(64, 2000)


STEPS = {"job_health": (bench.OWN_TABLES, bench.own_steps()), "asked of probes": (bench.PROBE_TABLES, bench.probe_steps())}


@cache
def measured(which: str) -> Any:
    return anyio.run(bench.measure, SIZE, *STEPS[which])


def oracle(tables: tuple[str, ...]) -> Oracle:
    nodes = [bench.rows_of(n, SIZE, tables) for n in range(SIZE.nodes)]
    job = bench.Job(SIZE, tables)
    job.close()
    return Oracle({t: pa.concat_tables([n[t] for n in nodes]) for t in tables}, cluster_nodes(job.view))


@pytest.mark.parametrize("which", STEPS)
def test_steps_give_what_one_duckdb_gives_in_two_waves(which: str) -> None:
    tables, statements = STEPS[which]
    found = measured(which)
    assert found.waves == found.requests == 2
    truth = oracle(tables)
    for statement in statements:
        result = found.results[statement.id]
        wrong = differences(result.table, truth.run(statement), result.columns)
        assert wrong is None, f"{statement.id}: {wrong}"


def test_steps_of_job_health_move_a_hundredth_of_the_rows_at_most() -> None:
    found = measured("job_health")
    assert found.share <= 1 / 100, found.lines
    assert found.results["job_slowdown_proxy"].table.column("rank")[0].as_py() == SIZE.slow


def test_the_same_questions_as_asked_of_probes_move_a_tenth_of_the_window_at_most() -> None:
    found = measured("asked of probes")
    window = 200 / (SIZE.rows / bench.OPS)  # of the rows: the newest 200 steps
    assert all(line.share <= window / 10 for line in found.lines), found.lines
    assert found.share <= window / 10, found.lines


def test_bytes_moved_do_not_grow_with_the_rows_of_a_rank() -> None:
    short, long = (anyio.run(bench.measure, bench.Size(16, n), *STEPS["job_health"]) for n in (500, 2000))
    assert long.rows > 3.5 * short.rows
    assert long.moved < 1.1 * short.moved


def test_rows_of_a_node_are_always_the_same() -> None:
    first, second = (bench.rows_of(3, bench.Size(64, 50), bench.OWN_TABLES) for _ in range(2))
    assert first == second
