"""Tables that are not recorded, imports, and several diagnoses at once: what the engine does around every diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnosis.files import Ask, asking, service_over
from diagnosis.histories import hanging, running
from muster.diagnosis.catalogue import load
from muster.diagnosis.evaluation import CheckResult, Evaluation
from muster.errors import ConfigError
from muster.model import Status
from muster.tables import REGISTRY

TEXT = {"en": "x", "zh": "某"}


def diagnosis(id: str, sql: str, requires: list[str], **more: Any) -> dict[str, Any]:
    check = {"name": "c", "title": TEXT, "step": "s"}
    return {
        "format": 1, "id": id, "title": TEXT, "asks": TEXT, "requires": requires,
        "steps": [{"name": "s", "doc": TEXT, "sql": sql}], "checks": [check], **more,
    }  # fmt: skip


KERNEL = "SELECT _host AS host, message FROM global.process.kmsg"
BOTH = (
    "SELECT k.message, g.temperature_c FROM global.process.kmsg AS k"
    " FULL JOIN global.gpu.utilization AS g ON g._host = k._host"
)
OWN = "SELECT _rank AS rank, x FROM global.my.table"
FILES = [
    diagnosis("kernel", KERNEL, ["process.kmsg"]),
    diagnosis("either", BOTH, ["process.kmsg", "gpu.utilization"]),
    diagnosis(
        "both", BOTH, ["process.kmsg", "gpu.utilization"],
        checks=[{"name": "c", "title": TEXT, "step": "s", "needs": ["gpu.utilization"]}],
    ),
    diagnosis(
        "own", OWN, ["my.table"], recording={"my.table": {"en": "Call my_table().", "zh": "调用 my_table()。"}},
        steps=[{"name": "s", "doc": TEXT, "sql": OWN, "columns": {"rank": "BIGINT", "x": "DOUBLE"}}],
    ),
    diagnosis(
        "seen", KERNEL, ["process.kmsg"],
        checks=[{"name": "c", "title": TEXT, "step": "s",
                 "sql": "SELECT NULL AS gate, count(DISTINCT rank) AS observed FROM recorded WHERE name = 'process.kmsg'"}],
    ),
]  # fmt: skip
NOBODY = {
    "name": "nobody", "check": "c", "step": "s", "severity": "info", "kind": "code",
    "message": {"en": "nobody", "zh": "无人"},
    "sql": "SELECT 1 AS one FROM (SELECT count(*) AS n FROM whose) WHERE n = 0",
}  # fmt: skip
for name, supplement in (("rests_on_it", False), ("does_without_it", True)):
    broken = {"name": "broken", "doc": TEXT, "supplement": supplement,
              "sql": "SELECT _rank AS rank, CAST(state AS INTEGER) AS n FROM global.process.rank"}  # fmt: skip
    sound = {"name": "s", "doc": TEXT, "sql": "SELECT _rank AS rank FROM global.process.rank"}
    FILES.append(
        diagnosis(name, KERNEL, ["process.rank"], steps=[sound, broken], findings=[NOBODY])
        | {"derived": [{"name": "whose", "doc": "x", "sql": "SELECT n FROM broken"}]}
    )
ROW = {"timestamp": 1, "level": "info", "message": "hello"}


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    with service_over(FILES, tmp_path_factory.mktemp("queries")) as made:
        yield asking(*made)


def check(e: Evaluation, id: str) -> CheckResult:
    return next(c for c in e.checks if c.diagnosis == id)


def test_a_table_that_nobody_records_makes_the_check_unknown_and_names_the_way_to_it(ask: Ask) -> None:
    e = ask(running(3, steps=30), "kernel")
    found = check(e, "kernel")
    assert (e.status, found.status, found.gate) == (Status.UNKNOWN, Status.UNKNOWN, "not_recorded")
    assert "process.kmsg" in (found.output or "")
    assert "dmesg" in (found.output or "")
    assert e.steps[0].error is None


def test_the_way_to_a_table_of_ones_own_is_in_the_file(ask: Ask) -> None:
    e = ask(running(3, steps=30), "own", lang="zh")
    assert "调用 my_table()。" in (check(e, "own").output or "")


def test_a_recorded_table_without_rows_is_a_pass(ask: Ask) -> None:
    history = running(3, steps=30)
    history.rows["process.kmsg"] = {}
    assert ask(history, "kernel").status is Status.PASS


def test_a_step_over_several_tables_answers_with_those_there_are(ask: Ask) -> None:
    history = running(3, steps=30)
    history.rows["process.kmsg"] = {0: [ROW]}
    e = ask(history, "either")
    assert check(e, "either").gate is None
    assert [r["message"] for s in e.steps if s.table is not None for r in s.table.to_pylist()] == ["hello"]


def test_a_check_may_need_one_of_them(ask: Ask) -> None:
    history = running(3, steps=30)
    history.rows["process.kmsg"] = {0: [ROW]}
    found = check(ask(history, "both"), "both")
    assert found.gate == "not_recorded"
    assert "gpu.utilization" in (found.output or "")
    assert "kmsg" not in (found.output or "")


def test_what_is_recorded_can_be_asked_for(ask: Ask) -> None:
    history = running(3, steps=30)
    history.rows["process.kmsg"] = {}
    assert check(ask(history, "seen"), "seen").observed == 3


def test_a_table_that_no_rank_records_does_not_lower_what_else_was_asked(ask: Ask) -> None:
    e = ask(running(3, steps=30), "job_health", "kernel")
    assert e.status is Status.PASS
    assert any("process.kmsg" in n for n in e.notes)


def test_several_ids_may_stand_in_one_word_with_commas(ask: Ask) -> None:
    assert ask(running(3, steps=30), "kernel, job_health", "kernel").diagnoses == ("kernel", "job_health")


def test_with_all_only_the_main_diagnosis_has_required_checks(ask: Ask) -> None:
    """Optional tables are missing nearly everywhere: that alone must not make every answer unknown."""
    e = ask(running(3, steps=30), "all", deadline_s=60)
    assert e.status is Status.PASS, e.verdict.summary
    assert e.waves == 2
    assert [s.name for s in e.steps if s.error is not None and s.name != "broken"] == []


def test_with_all_a_hang_is_still_a_failure(ask: Ask) -> None:
    history = running(3, steps=30)
    hanging(history, 1, 100)
    assert ask(history, "all", deadline_s=60).status is Status.FAIL


def test_a_step_that_failed_does_not_look_like_one_that_found_nothing(ask: Ask) -> None:
    e = ask(running(3, steps=30), "rests_on_it")
    assert (e.findings, check(e, "rests_on_it").gate, e.status) == ((), "step_failed", Status.UNKNOWN)
    assert "broken" in (check(e, "rests_on_it").output or "")


def test_a_supplement_that_failed_is_done_without(ask: Ask) -> None:
    e = ask(running(3, steps=30), "does_without_it")
    assert [f.id for f in e.findings] == ["nobody"]


def test_imported_steps_and_tables_come_with_their_parameters(tmp_path: Path) -> None:
    content = diagnosis("taker", "SELECT 1 AS one", ["process.rank"]) | {
        "imports": {"job_health": ["cluster_snapshot", "limits"]},
        "findings": [{"name": "f", "check": "c", "step": "cluster_snapshot", "severity": "info", "kind": "code",
                      "message": {"en": "{warn_s}", "zh": "{warn_s}"}, "sql": "SELECT warn_s FROM limits"}],
    }  # fmt: skip
    (tmp_path / "taker.yaml").write_text(yaml.safe_dump(content))
    taken = load([tmp_path]).get("taker").diagnosis
    assert [s.name for s in taken.steps] == ["cluster_snapshot", "s"]
    assert "stall_warn_s" in taken.parameters
    assert "straggler_ratio" not in taken.parameters


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"imports": {"job_health": ["nothing"]}}, "job_health has no nothing"),
        ({"imports": {"job_health": ["limits"]}, "requires": []}, "cluster_snapshot"),  # what it reads is not imported
        ({"steps": [{"name": "s", "doc": TEXT, "sql": "SELECT nothing AS one"}]}, ":{line}: step s: "),
    ],
)
def test_an_import_that_does_not_fit_names_the_line(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    content = diagnosis("taker", "SELECT 1 AS one", ["process.rank"])
    content["imports"] = {"job_health": ["cluster_snapshot"]}
    content |= change
    text = yaml.safe_dump(content, sort_keys=False)
    (tmp_path / "taker.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load([tmp_path])
    line = next((i for i, row in enumerate(text.splitlines(), 1) if "SELECT nothing" in row), 0)
    assert says.format(line=line) in caught.value.detail


def test_every_table_of_the_registry_says_how_to_record_it() -> None:
    from muster.diagnosis.recording import HOW
    from muster.tables import GATEWAY_TABLES

    assert REGISTRY.keys() - GATEWAY_TABLES.keys() == HOW.keys()
