"""module_bottleneck: leaf modules only, layers of a stack together, for information."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import Cluster, History, running
from diagnosis.steps import assert_steps_equal_one_duckdb, check
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.model import Severity, Status

ID = ["module_bottleneck"]
TIMES = {  # ms in forward
    "": 100.0, "model": 99.0, "model.embed": 2.0, "model.layers.0": 45.0, "model.layers.0.attn": 30.0,
    "model.layers.0.mlp": 12.0, "model.layers.1": 45.0, "model.layers.1.attn": 30.0, "model.layers.1.mlp": 12.0,
    "model.layers.10": 1.0, "model-head": 14.0,
}  # fmt: skip
LEAVES = [
    "model-head",
    "model.embed",
    *(f"model.layers.{i}.{part}" for i in (0, 1) for part in ("attn", "mlp")),
    "model.layers.10",
]


def traced(steps: int = 10, every: int = 5) -> History:
    history = running(4, nodes=2, steps=60)
    history.rows["python.torch_trace"] = {
        r: [
            {
                "local_step": s * every, "seq": i, "stage": stage, "module": module,
                "duration": None if stage == "pre forward" else ms / 1000, "allocated_delta": ms,
                "max_allocated_delta": 2 * ms,
            }
            for s in range(1, steps + 1)
            for i, (module, ms) in enumerate(TIMES.items())
            for stage in ("pre forward", "post forward")
        ]
        for r in range(4)
    }  # fmt: skip
    return history


def test_only_leaves_are_counted(evaluate: Evaluate) -> None:
    e = evaluate(traced(), ids=ID)
    rows = e.steps[0].table.to_pylist()  # type: ignore[union-attr]
    assert [r["module"] for r in rows] == LEAVES
    assert sum(r["share"] for r in rows) == pytest.approx(1)
    assert {(r["calls"], r["ranks"]) for r in rows} == {(40, 4)}


def test_layers_of_a_stack_are_named_together_and_nobody_is_blamed(evaluate: Evaluate) -> None:
    e = evaluate(traced(), ids=ID)
    heavy = [f for f in e.findings if f.id == "heavy_modules"]
    assert e.status is Status.PASS
    assert {f.severity for f in e.findings} == {Severity.INFO}
    assert {f.ranks for f in e.findings} == {()}
    assert heavy[0].message.startswith("model.layers.*.attn (2 modules) takes 59")
    assert [f.message.split(" (")[0] for f in heavy] == ["model.layers.*.attn", "model.layers.*.mlp", "model-head"]


def test_the_module_that_raises_the_peak_most_is_named(evaluate: Evaluate) -> None:
    found = next(f for f in evaluate(traced(), ids=ID).findings if f.id == "largest_module")
    assert found.observed == pytest.approx(60)


@pytest.mark.parametrize(("history", "gate"), [(lambda: running(4), "not_recorded"), (lambda: traced(steps=0), "sample")])
def test_without_samples_nothing_is_concluded(evaluate: Evaluate, history: Callable[[], History], gate: str) -> None:
    e = evaluate(history(), ids=ID)
    found = check(e, "modules")
    assert (e.status, found.gate, e.findings) == (Status.UNKNOWN, gate, ())
    assert found.output
    assert gate == "sample" or "python.torch_trace" in found.output


@pytest.mark.parametrize("make", [traced, lambda: traced(steps=1), lambda: traced(steps=0)])
@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, make: Callable[[], History], down: tuple[int, ...]
) -> None:
    history = make()
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
