"""input_bottleneck: time in the data loader, of one rank, of a host, of all."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import Cluster, History, running
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.model import Kind, Severity, Status

ID = ["input_bottleneck"]
Load = Callable[[int, int, random.Random], float]


def loading(load: Load, **options: object) -> History:
    """The loader is part of a rank's own time."""
    rng = random.Random(5)
    world = 6
    times = {(r, s): max(0.0, load(r, s, rng)) for r in range(world) for s in range(120)}
    history = running(world, own=lambda r, s, rng: rng.gauss(20, 0.5) + times[r, s], **options)  # type: ignore[arg-type]
    for rank, rows in history.rows["python.torch_step_timing"].items():
        for row in rows:
            row["data_ms"] = times[rank, row["global_step"]]
    return history


def test_one_slow_loader_names_its_rank_and_not_its_node(evaluate: Evaluate) -> None:
    e = evaluate(loading(lambda r, s, rng: rng.gauss(12 if r == 3 else 0.5, 0.1)), ids=ID)
    found = only(e)
    assert (found.id, found.kind, found.ranks, found.severity) == ("slow_loader", Kind.DATA, (3,), Severity.WARN)
    assert found.victims == (0, 1, 2, 4, 5)
    assert e.drain_candidates == ()


def test_a_loader_that_takes_most_of_the_step_is_a_failure(evaluate: Evaluate) -> None:
    found = only(evaluate(loading(lambda r, s, rng: 60 if r == 3 else 0.5), ids=ID))
    assert (found.severity, found.ranks) == (Severity.FAIL, (3,))


def test_a_host_whose_loaders_are_all_slow_is_storage(evaluate: Evaluate) -> None:
    found = only(evaluate(loading(lambda r, s, rng: 12 if r in (2, 3) else 0.5), ids=ID))
    assert (found.kind, found.ranks, found.hosts) == (Kind.STORAGE, (2, 3), ("n1",))


def test_all_slow_together_blames_nobody(evaluate: Evaluate) -> None:
    found = only(evaluate(loading(lambda r, s, rng: rng.gauss(9, 1)), ids=ID))
    assert (found.id, found.kind, found.ranks) == ("loaders_slow", Kind.STORAGE, ())


def test_a_loader_that_keeps_up_is_a_pass(evaluate: Evaluate) -> None:
    e = evaluate(loading(lambda r, s, rng: rng.gauss(0.3, 0.1) * (3 if r == 1 else 1)), ids=ID)
    assert (e.status, e.findings) == (Status.PASS, ())


def test_bursts_are_told_for_information(evaluate: Evaluate) -> None:
    e = evaluate(loading(lambda r, s, rng: 60 if s % 10 == 0 else 0.2), ids=ID)
    assert (e.status, [f.id for f in e.findings]) == (Status.PASS, ["loader_bursts"])


@pytest.mark.parametrize("phase", ["eval", "checkpoint", "warmup"])
def test_loading_in_an_evaluation_is_silent(evaluate: Evaluate, phase: str) -> None:
    special = dict.fromkeys(range(0, 120, 2), phase)
    e = evaluate(loading(lambda r, s, rng: 50 if s % 2 == 0 else 0.2, phases=special), ids=ID)
    assert (e.status, e.findings) == (Status.PASS, ())


@pytest.mark.parametrize(
    ("history", "gate"), [(running(6), "timing"), (running(6, steps=12), "sample"), (running(3, steps=0), "sample")]
)
def test_gates_say_what_is_missing(evaluate: Evaluate, history: History, gate: str) -> None:
    e = evaluate(history, ids=ID)
    assert (e.status, check(e, "loader").gate, loud(e)) == (Status.UNKNOWN, gate, [])
    assert check(e, "loader").output


@pytest.mark.parametrize(
    "make", [lambda: loading(lambda r, s, rng: rng.gauss(3, 1)), lambda: running(3, steps=0), lambda: running(6)]
)
@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, make: object, down: tuple[int, ...]
) -> None:
    history: History = make()  # type: ignore[operator]
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
