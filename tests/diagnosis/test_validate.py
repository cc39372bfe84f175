"""`muster queries check`: every problem with its line, what is only worth a look, and the packaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.diagnosis.catalogue import load
from muster.diagnosis.validate import validate
from muster.errors import ConfigError

TEXT = {"en": "x", "zh": "某"}


def small(id: str, sql: str, **more: Any) -> dict[str, Any]:
    return {
        "format": 1, "id": id, "title": TEXT, "asks": TEXT, "requires": ["process.rank"],
        "steps": [{"name": "s", "doc": TEXT, "sql": sql}], "checks": [{"name": "c", "title": TEXT, "step": "s"}],
    } | more  # fmt: skip


SOUND = "SELECT _rank AS rank FROM global.process.rank"


def write(directory: Path, *contents: dict[str, Any]) -> None:
    for content in contents:
        (directory / f"{content['id']}.yaml").write_text(yaml.safe_dump(content, allow_unicode=True))


def test_the_packaged_diagnoses_are_sound() -> None:
    report = validate()
    assert [p.detail for p in report.problems] == []
    assert [r for r in report.remarks if "there is no diagnosis" not in r] == []
    assert {x.diagnosis.id for x in report.checked} == set(load().ids)
    assert report.statements > 200


def test_every_file_that_is_wrong_is_told_with_its_line_and_sound_ones_are_checked(tmp_path: Path) -> None:
    write(
        tmp_path,
        small("good", SOUND),
        small("no_table", "SELECT 1 AS x FROM global.no.such"),
        small("no_import", SOUND, imports={"job_health": ["nothing"]}),
        small("volatile", "SELECT random() AS x FROM global.process.rank"),
    )
    (tmp_path / "not_yaml.yaml").write_text("a: [")
    report = validate([tmp_path], packaged=False)
    assert {x.diagnosis.id for x in report.checked} == {"good"}
    said = sorted(p.detail.removeprefix(f"{tmp_path}/") for p in report.problems)
    assert [s.partition(".yaml:")[0] for s in said] == ["no_import", "no_table", "not_yaml", "volatile"]
    assert all(int(s.partition(".yaml:")[2].partition(":")[0]) >= 1 for s in said)


def test_a_step_that_cannot_be_asked_over_a_job_is_told(tmp_path: Path) -> None:
    """It binds: one database can tell two tables of one name apart by their schemas."""
    sql = "SELECT count(*) AS n FROM global.cpu.utilization CROSS JOIN global.gpu.utilization"
    write(tmp_path, small("far", sql, requires=["cpu.utilization", "gpu.utilization"]))
    (problem,) = validate([tmp_path], packaged=False).problems
    assert "far.yaml:" in problem.detail
    assert "cannot be asked over a job" in problem.detail


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"related": ["nobody"]}, "there is no diagnosis nobody"),
        ({"gates": {"never": TEXT}}, "no check gives the gate never"),
        ({"asks": {"en": "x", "zh": "x"}}, "asks: the Chinese text has no Chinese character"),
    ],
)
def test_what_is_worth_a_look_is_a_remark(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    write(tmp_path, small("odd", SOUND, **change))
    report = validate([tmp_path], packaged=False)
    assert report.problems == ()
    assert [r for r in report.remarks if says in r]


def test_a_file_of_ones_own_replaces_the_packaged_one(tmp_path: Path) -> None:
    write(tmp_path, small("crash_triage", SOUND))
    report = validate([tmp_path])
    (own,) = [x for x in report.checked if x.diagnosis.id == "crash_triage"]
    assert own.path.parent == tmp_path


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a directory"):
        validate([tmp_path / "none"])
