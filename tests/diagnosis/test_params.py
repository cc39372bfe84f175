"""Parameters as callers give them."""

from __future__ import annotations

import pytest

from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.diagnosis.params import resolve
from muster.diagnosis.schema import Diagnosis
from muster.errors import ParameterError


@pytest.fixture
def job_health(catalogue: DiagnosisCatalogue) -> Diagnosis:
    return catalogue.get("job_health").diagnosis


def test_defaults_are_filled_in(job_health: Diagnosis) -> None:
    values = resolve([job_health], {})["job_health"]
    assert values["step_window"] == 200
    assert values["baseline_step_ms"] is None


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("step_window", "50", 50),
        ("step_window", 50, 50),
        ("job_health.step_window", " 50 ", 50),
        ("use_global", "false", False),
        ("use_global", "NO", False),
        ("straggler_ratio", "1.2", 1.2),
        ("straggler_ratio", 2, 2.0),
        ("baseline_step_ms", None, None),
    ],
)
def test_values_are_typed(job_health: Diagnosis, name: str, raw: object, value: object) -> None:
    short = name.rpartition(".")[2]
    got = resolve([job_health], {name: raw})["job_health"][short]  # type: ignore[dict-item]
    assert (got, type(got)) == (value, type(value))


def test_the_fuller_name_wins(job_health: Diagnosis) -> None:
    given = {"job_health.step_window": "30", "step_window": "50"}
    assert resolve([job_health], given)["job_health"]["step_window"] == 30


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("step_window", "ten"), ("step_window", "1.5"), ("step_window", ""), ("step_window", "5"), ("step_window", "1e99"),
        ("step_window", True), ("step_window", "2_00"), ("step_window", "9" * 60), ("use_global", "maybe"),
        ("straggler_ratio", "nan"), ("straggler_ratio", "inf"), ("job_health.straggler_ratio", "0"),
    ],
)  # fmt: skip
def test_a_malformed_value_names_the_parameter_and_what_fits(job_health: Diagnosis, name: str, raw: object) -> None:
    with pytest.raises(ParameterError) as caught:
        resolve([job_health], {name: raw})  # type: ignore[dict-item]
    problem = caught.value.problem()
    assert (problem["status"], problem["parameter"]) == (400, name)
    assert name in problem["detail"]
    assert problem["hint"].startswith("Give ")


@pytest.mark.parametrize("name", ["step_windw", "job_health.step_windw", "job_helth.step_window"])
def test_an_unknown_parameter_names_the_nearest(job_health: Diagnosis, name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        resolve([job_health], {name: "5"})
    assert "step_window" in (caught.value.hint or "").partition("Parameters:")[0]
