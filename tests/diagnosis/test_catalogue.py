"""Loading files of queries/: what is refused, where the error points, what replaces what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.diagnosis.catalogue import PACKAGED, DiagnosisCatalogue, load
from muster.errors import ConfigError, DiagnosisNotFound

TEXT = {"en": "x", "zh": "x"}


def diagnosis(**changes: Any) -> dict[str, Any]:
    """A small sound diagnosis."""
    return {
        "format": 1,
        "id": "probe",
        "title": TEXT,
        "asks": TEXT,
        "requires": ["process.rank"],
        "parameters": {"limit": {"type": "int", "default": 3, "min": 1, "doc": TEXT}},
        "steps": [
            {
                "name": "ages",
                "doc": TEXT,
                "required": True,
                "sql": "SELECT _rank AS rank, age_s FROM global.process.rank WHERE age_s > $limit",
            }
        ],
        "checks": [{"name": "old", "title": TEXT, "step": "ages"}],
        "findings": [
            {
                "name": "old",
                "check": "old",
                "step": "ages",
                "severity": "warn",
                "kind": "process",
                "evidence": ["rank"],
                "sql": "SELECT [rank] AS ranks, age_s FROM ages",
                "message": {"en": "{ranks} is {age_s:s} old", "zh": "{ranks} {age_s:s}"},
            }
        ],
    } | changes


def write(directory: Path, content: dict[str, Any], name: str = "probe.yaml") -> Path:
    path = directory / name
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return path


def refused(directory: Path, content: dict[str, Any]) -> ConfigError:
    path = write(directory, content)
    with pytest.raises(ConfigError) as caught:
        load([directory], packaged=False)
    assert str(path) in caught.value.detail
    return caught.value


def change_finding(**changes: Any) -> dict[str, Any]:
    content = diagnosis()
    content["findings"][0] |= changes
    return content


def test_the_packaged_diagnoses_load(catalogue: DiagnosisCatalogue) -> None:
    assert "job_health" in catalogue.ids
    loaded = catalogue.get("job_health")
    assert loaded.path.parent == PACKAGED
    names = [s.name for s in loaded.diagnosis.steps]
    assert names[:5] == [
        "cluster_snapshot", "rank_step_lag", "job_slowdown_proxy", "comm_trend_by_step", "train_step_pacing",
    ]  # fmt: skip
    assert loaded.diagnosis.required_steps == {"cluster_snapshot", "rank_step_lag"}
    defaults = {n: p.default for n, p in loaded.diagnosis.parameters.items()}
    assert (defaults["step_window"], defaults["step_lag_threshold"], defaults["use_global"]) == (200, 5, True)


def test_an_unknown_diagnosis_names_the_nearest(catalogue: DiagnosisCatalogue) -> None:
    with pytest.raises(DiagnosisNotFound) as caught:
        catalogue.get("job_heath")
    assert "job_health" in (caught.value.hint or "")


def test_a_directory_of_ones_own_adds_to_the_packaged_ones(tmp_path: Path) -> None:
    write(tmp_path, diagnosis())
    assert set(load([tmp_path]).ids) == {*load().ids, "probe"}


def test_a_later_directory_replaces_an_earlier_file(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    write(first, diagnosis())
    path = write(second, diagnosis(asks={"en": "new", "zh": "new"}), "other.yaml")
    assert load([first, second], packaged=False).get("probe").path == path


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    write(tmp_path, diagnosis())
    assert load([tmp_path], packaged=False) is load([tmp_path], packaged=False)
    write(tmp_path, diagnosis(asks={"en": "changed", "zh": "x"}))
    assert load([tmp_path], packaged=False).get("probe").diagnosis.asks.en == "changed"


def test_two_files_of_one_directory_with_one_id_are_refused(tmp_path: Path) -> None:
    write(tmp_path, diagnosis())
    write(tmp_path, diagnosis(), "zz.yaml")
    with pytest.raises(ConfigError, match=r"zz\.yaml:2: probe is also the id of probe\.yaml"):
        load([tmp_path], packaged=False)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a directory"):
        load([tmp_path / "none"])


def test_an_unknown_key_names_its_line(tmp_path: Path) -> None:
    error = refused(tmp_path, diagnosis(colour="red"))
    text = (tmp_path / "probe.yaml").read_text().splitlines()
    assert error.extra["line"] == text.index("colour: red") + 1
    assert "colour" in error.detail


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (diagnosis(format=2), "format"),
        (diagnosis(id="Not Good"), "id"),
        (diagnosis(title={"en": "only"}), "title.zh"),
        (diagnosis(requires=[]), "process.rank is read but not named"),
        (diagnosis(requires=["process.rank", "python.checkpoint"]), "python.checkpoint is not read"),
        (diagnosis(parameters={"limit": {"type": "int", "default": "x", "doc": TEXT}}), "default does not fit"),
        (diagnosis(parameters={"limit": {"type": "int", "default": 0, "min": 1, "doc": TEXT}}), "default does not fit"),
        (diagnosis(parameters={}), "limit"),
        (diagnosis(steps=[]), "steps"),
        (diagnosis(checks=[{"name": "old", "title": TEXT, "step": "none"}]), "names the step none"),
        (diagnosis(derived=[{"name": "ages", "doc": "x", "sql": "SELECT 1"}]), "is there twice"),
        (diagnosis(imports={"none": ["x"]}), "there is no diagnosis none"),
        (diagnosis(checks=[{"name": "old", "title": TEXT, "step": "ages", "needs": ["gpu.devices"]}]), "is not read"),
        (diagnosis(derived=[{"name": "roster", "doc": "x", "sql": "SELECT 1"}]), "every diagnosis has"),
        (diagnosis(derived=[{"name": "d", "doc": "x", "sql": "SELECT nothing FROM ages"}]), "nothing"),
        (diagnosis(derived=[{"name": "d", "doc": "x", "sql": "DROP TABLE ages"}]), "exactly one SELECT"),
        (diagnosis(derived=[{"name": "d", "doc": "x", "sql": "SELECT 1; SELECT 2"}]), "exactly one SELECT"),
        (diagnosis(derived=[{"name": "d", "doc": "x", "sql": "SELECT * FROM read_csv('/etc/passwd')"}]), "d: "),
        (diagnosis(checks=[{"name": "old", "title": TEXT, "step": "ages", "sql": "SELECT 1 AS a"}]), "gate and observed"),
        (diagnosis(facts=[{"name": "f", "sql": "SELECT missing FROM ages"}]), "missing"),
        (change_finding(check="none"), "names the check none"),
        (change_finding(message={"en": "{nothing}", "zh": "x"}), "no column nothing for its message"),
        (change_finding(message={"en": "x", "zh": "{ranks.real}"}), "ranks.real"),
        (change_finding(message={"en": "{age_s:>10}", "zh": "x"}), "unknown format"),
        (change_finding(severity=None), "severity once"),
        (change_finding(sql="SELECT [rank] AS ranks, age_s, 'warn' AS severity FROM ages"), "severity once"),
        (change_finding(kind=None), "kind once"),
        (change_finding(kind="witchcraft"), "kind"),
        (change_finding(sql="SELECT rank AS ranks, age_s FROM ages"), "ranks must be a list"),
        (change_finding(evidence=["colour"]), "has no colour"),
    ],
)  # fmt: skip
def test_what_a_loader_can_know_is_refused(tmp_path: Path, content: dict[str, Any], says: str) -> None:
    assert says in refused(tmp_path, content).detail


def test_an_error_in_sql_names_the_line_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "probe.yaml"
    content = diagnosis()
    content["steps"][0]["sql"] = "@"
    text = yaml.safe_dump(content, sort_keys=False).replace(
        "sql: '@'", "sql: |\n      SELECT _rank AS rank, age_s\n      FROM global.process.rang\n      WHERE age_s > $limit"
    )
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load([tmp_path], packaged=False)
    line = text.splitlines().index("      FROM global.process.rang") + 1
    assert f"{path}:{line}:" in caught.value.detail
    assert "process.rank" in caught.value.detail  # the nearest


@pytest.mark.parametrize("text", ["format: [", "format: 1\nformat: 1\n", "- a\n", "", "a: &x [*x]\n", "\t"])
def test_a_file_that_is_no_diagnosis_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load([tmp_path], packaged=False)


def test_a_step_over_a_table_of_ones_own_declares_its_columns(tmp_path: Path) -> None:
    content = diagnosis(requires=["my.metrics"])
    content["steps"][0] |= {"sql": "SELECT _rank AS rank, age_s FROM global.my.metrics WHERE age_s > $limit"}
    assert "columns" in refused(tmp_path, content).detail
    content["steps"][0]["columns"] = {"rank": "BIGINT", "age_s": "DOUBLE"}
    write(tmp_path, content)
    assert load([tmp_path], packaged=False).ids == ("probe",)


DOCS = Path(__file__).parents[2] / "docs" / "diagnoses.md"


def test_the_example_of_the_documentation_loads(tmp_path: Path) -> None:
    text = DOCS.read_text("utf-8")
    (tmp_path / "old_ranks.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    assert load([tmp_path]).get("old_ranks").diagnosis.required_steps == {"ages"}


def test_the_documentation_names_every_finding_gate_and_parameter_of_job_health(catalogue: DiagnosisCatalogue) -> None:
    text = DOCS.read_text("utf-8")
    d = catalogue.get("job_health").diagnosis
    names = [
        *(f.name for f in d.findings),
        *d.parameters,
        *(s.name for s in d.steps),
        *(g for g in d.gates if g != "no_rows"),
    ]
    assert [n for n in names if f"`{n}`" not in text] == []
