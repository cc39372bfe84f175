"""`muster queries`: list, show, check, schema, docs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from muster.cli.app import run_cli
from muster.diagnosis.reference import BEGIN, END

TEXT = {"en": "Own?", "zh": "自有？"}
OWN = {
    "format": 1, "id": "own", "title": TEXT, "asks": TEXT, "requires": ["process.rank"],
    "steps": [{"name": "s", "doc": TEXT, "sql": "SELECT _rank AS rank FROM global.process.rank"}],
    "checks": [{"name": "c", "title": TEXT, "step": "s"}],
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path) -> Path:
    directory = tmp_path / "own"
    directory.mkdir()
    (directory / "own.yaml").write_text(yaml.safe_dump(OWN, allow_unicode=True))
    return directory


def test_list_names_the_packaged_ones_and_ones_own(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["queries", "list", "--queries", str(own), "--lang", "zh"]) == 0
    out = capsys.readouterr().out
    assert "job_health" in out
    assert "自有？" in out
    assert run_cli(["queries", "list", "--queries", str(own), "--json"]) == 0
    found = {d["id"]: d for d in json.loads(capsys.readouterr().out)}
    assert found["own"]["requires"] == ["process.rank"]


def test_show_has_steps_findings_and_sql_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["queries", "show", "crash_triage"]) == 0
    out = capsys.readouterr().out
    assert "`died_first`" in out
    assert "SELECT" not in out
    assert run_cli(["queries", "show", "crash_triage", "--sql"]) == 0
    assert "FROM global.process.exit" in capsys.readouterr().out


def test_show_of_an_unknown_one_names_the_nearest_and_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["queries", "show", "crash_triag"]) == 3
    assert "crash_triage" in capsys.readouterr().err


def test_check_of_sound_files_exits_0(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["queries", "check", str(own)]) == 0
    assert "0 are not" in capsys.readouterr().out


def test_check_tells_every_problem_with_its_line_and_exits_3(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "second"):
        steps = [{"name": "s", "doc": TEXT, "sql": "SELECT nothing FROM global.process.rank"}]
        (own / f"{name}.yaml").write_text(yaml.safe_dump({**OWN, "id": name, "steps": steps}, allow_unicode=True))
    assert run_cli(["queries", "check", str(own)]) == 3
    out = capsys.readouterr().out
    assert [f"{name}.yaml:" in out for name in ("first", "second", "own")] == [True, True, False]
    assert "2 are not" in out


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["queries", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Diagnosis"


def test_docs_writes_the_schema_and_the_pages_that_are_there(own: Path, tmp_path: Path) -> None:
    pages = tmp_path / "docs" / "diagnoses"
    pages.mkdir(parents=True)
    (pages / "own.md").write_text(f"# own\n\n{BEGIN}\n{END}\n\nkept\n")
    assert run_cli(["queries", "docs", str(tmp_path / "docs"), "--queries", str(own)]) == 0
    text = (pages / "own.md").read_text()
    assert "Own?" in text
    assert text.endswith("kept\n")
    assert (tmp_path / "docs" / "queries.schema.json").is_file()
    assert not (pages / "job_health.md").exists()
