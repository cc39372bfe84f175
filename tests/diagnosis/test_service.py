"""The service around a diagnosis: several at once, steps and statements that fail, arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from diagnosis.files import Ask, asking, service_over
from diagnosis.histories import Cluster, hanging, running
from muster.diagnosis.catalogue import load
from muster.diagnosis.evaluation import Evaluation
from muster.diagnosis.service import DiagnosisService
from muster.errors import DiagnosisNotFound, ParameterError
from muster.model import Phase, Status
from muster.sql import planner

TEXT = {"en": "x", "zh": "某"}


def small(id: str, *, step_sql: str, required: bool, **more: Any) -> dict[str, Any]:
    return {
        "format": 1, "id": id, "title": TEXT, "asks": TEXT, "requires": ["process.rank"],
        "steps": [{"name": "s", "doc": TEXT, "required": required, "sql": step_sql}],
        "checks": [{"name": "c", "title": TEXT, "step": "s", "required": required}], **more,
    }  # fmt: skip


FINDING = {
    "name": "f", "check": "c", "step": "s", "severity": "warn", "kind": "code", "message": {"en": "{n}", "zh": "{n}"},
    "sql": "SELECT CAST(max(state) AS INTEGER) AS n FROM s HAVING count(*) > 0",
}  # fmt: skip
FILES = [
    small("sound", step_sql="SELECT _rank AS rank, state FROM global.process.rank", required=True),
    small("broken_step", step_sql="SELECT CAST(state AS INTEGER) AS n FROM global.process.rank", required=True),
    small("optional_step", step_sql="SELECT CAST(state AS INTEGER) AS n FROM global.process.rank", required=False),
    small("broken_rule", step_sql="SELECT state FROM global.process.rank", required=True, findings=[FINDING]),
    small(
        "broken_table",
        step_sql="SELECT state FROM global.process.rank",
        required=False,
        derived=[{"name": "d", "doc": "x", "sql": "SELECT CAST(state AS INTEGER) AS n FROM s"}],
        findings=[FINDING | {"sql": "SELECT n FROM d"}],
    ),
]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DiagnosisService, Cluster]]:
    with service_over(FILES, tmp_path_factory.mktemp("queries")) as made:
        yield made


@pytest.fixture
def ask(services: tuple[DiagnosisService, Cluster]) -> Ask:
    return asking(*services)


def gate(e: Evaluation) -> str | None:
    return e.checks[0].gate


def test_another_diagnosis_alone_still_knows_the_phase(ask: Ask) -> None:
    e = ask(running(3, steps=30), "sound")
    assert (e.status, e.phase, e.step) == (Status.PASS, Phase.RUNNING, 29)
    assert [s.name for s in e.steps] == ["s"]


def test_several_diagnoses_share_their_round_trips_and_the_worst_decides(ask: Ask) -> None:
    history = running(3, steps=30)
    hanging(history, 1, 20)
    e = ask(history, "sound", "job_health", "sound")
    assert e.diagnoses == ("sound", "job_health")
    assert (e.status, e.waves) == (Status.WARN, 2)


def test_all_means_every_diagnosis(ask: Ask) -> None:
    assert {"job_health", *(f["id"] for f in FILES)} <= set(ask(running(3, steps=30), "all").diagnoses)


def test_a_required_step_that_fails_makes_unknown_and_says_why(ask: Ask) -> None:
    e = ask(running(3, steps=30), "broken_step")
    assert (e.status, gate(e)) == (Status.UNKNOWN, "step_failed")
    assert "Could not convert" in e.notes[0]
    assert e.steps[0].error is not None


def test_an_optional_step_that_fails_leaves_the_verdict_to_what_else_was_asked_and_says_why(ask: Ask) -> None:
    e = ask(running(3, steps=30), "optional_step")
    assert (e.status, e.checks[0].status, gate(e)) == (Status.UNKNOWN, Status.UNKNOWN, "step_failed")
    assert e.notes
    assert ask(running(3, steps=30), "sound", "optional_step").status is Status.PASS


def test_a_finding_that_cannot_be_computed_closes_its_check(ask: Ask) -> None:
    e = ask(running(3, steps=30), "broken_rule")
    assert (e.status, gate(e)) == (Status.UNKNOWN, "statement_failed")


def test_a_derived_table_that_cannot_be_computed_closes_what_reads_it(ask: Ask) -> None:
    e = ask(running(3, steps=30), "broken_table")
    assert (e.status, gate(e)) == (Status.UNKNOWN, "statement_failed")
    assert "Could not convert" in (e.checks[0].output or "")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"lang": "fr"}, "lang"), ({"deadline_s": 0.0}, "deadline"), ({"deadline_s": 1e9}, "deadline"),
        ({"min_coverage": 1.5}, "min_coverage"), ({"params": {"step_windw": "3"}}, "step_windw"),
    ],
)  # fmt: skip
def test_malformed_arguments_are_named(ask: Ask, options: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        ask(running(2, nodes=1, steps=0), "job_health", **options)
    assert caught.value.extra["parameter"] == name


def test_an_unknown_diagnosis_is_not_found(ask: Ask) -> None:
    with pytest.raises(DiagnosisNotFound):
        ask(running(2, nodes=1, steps=0), "none")


def test_evaluations_at_once_do_not_disturb_each_other(services: tuple[DiagnosisService, Cluster]) -> None:
    service, cluster = services
    history = running(6, steps=60)
    hanging(history, 2, 20)
    view = cluster.view(history)
    found: list[Evaluation] = []

    async def one() -> None:
        found.append(await service.evaluate(view, deadline_s=60))

    async def many() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(one)

    anyio.run(many)
    assert [f.ranks for e in found for f in e.findings] == [(2,)] * 6


@pytest.mark.anyio
async def test_what_was_prepared_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    service = DiagnosisService(load(), cluster.federation)
    await service.prepare(pause_s=0)

    def planned(*_: object) -> None:
        raise AssertionError("a statement was planned for a request")

    monkeypatch.setattr(planner, "_plan", planned)
    evaluation = await service.evaluate(cluster.view(running(world=4, nodes=2)), deadline_s=60.0)
    assert evaluation.verdict.status is Status.PASS
    service.close()
