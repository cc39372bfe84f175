"""Documentation that is generated: schema, index, pages. `muster queries docs docs` writes all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from muster.diagnosis.catalogue import PACKAGED, DiagnosisCatalogue
from muster.diagnosis.reference import BEGIN, END, SCHEMA_FILE, files, replaced, schema, schema_text
from muster.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"
RUNBOOK = ("## What it concludes", "## What it cannot know", "## Example", "## Runbook")
OWN = (
    "crash_triage", "health_overview", "node_hardware", "sre_triage", "startup_stall", "training_hang",
    "persistent_straggler", "slow_rank", "comm_bottleneck", "input_bottleneck", "memory_leak", "gpu_pressure",
    "module_bottleneck", "watchdog_timeout", "nccl_culprit_victim",
)  # fmt: skip


def test_the_schema_that_is_checked_in_is_current() -> None:
    assert (DOCS / SCHEMA_FILE).read_text("utf-8") == schema_text(), "run: muster queries docs docs"


def test_every_packaged_file_fits_the_schema() -> None:
    validator = Draft202012Validator(schema())
    for path in sorted(PACKAGED.glob("*.yaml")):
        assert list(validator.iter_errors(yaml.safe_load(path.read_text("utf-8")))) == [], path.name


def test_the_schema_refuses_what_the_loader_refuses() -> None:
    content = yaml.safe_load((PACKAGED / "job_health.yaml").read_text("utf-8"))
    assert not Draft202012Validator(schema()).is_valid(content | {"colour": "red"})
    assert not Draft202012Validator(schema()).is_valid(content | {"format": 2})


def test_the_generated_parts_of_the_documentation_are_current(catalogue: DiagnosisCatalogue) -> None:
    stale = [p.name for p, text in files(catalogue, DOCS).items() if p.read_text("utf-8") != text]
    assert stale == [], "run: muster queries docs docs"


@pytest.mark.parametrize("id", OWN)
def test_every_diagnosis_has_a_page_with_its_parts(id: str) -> None:
    text = (DOCS / "diagnoses" / f"{id}.md").read_text("utf-8")
    assert BEGIN in text
    assert [part for part in RUNBOOK if part not in text] == []


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ConfigError, match="no generated part"):
        replaced("# x\n", "y")
    assert replaced(f"a\n{BEGIN}\nold\n{END}\nb\n", "new\n") == f"a\n{BEGIN}\n\nnew\n\n{END}\nb\n"
