"""The pure rules: verdict, phase, what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.diagnosis.actions import drain_candidates, recommendation
from muster.diagnosis.evaluation import CheckResult
from muster.diagnosis.phase import phase_of
from muster.diagnosis.verdict import settle, status_of
from muster.model import Finding, JobView, Kind, Phase, RankInfo, RankStatus, Severity, Status

FINDING = Finding("f", "job_health", Severity.WARN, Kind.PROCESS, "m")
CHECK = CheckResult("job_health", "c", "t", "s", True, Status.PASS)
ORDER = [Status.PASS, Status.UNKNOWN, Status.WARN, Status.FAIL]
NONE: frozenset[str] = frozenset()


def finding(severity: Severity = Severity.WARN, kind: Kind = Kind.PROCESS, **more: Any) -> Finding:
    return replace(FINDING, severity=severity, kind=kind, **more)


@pytest.mark.parametrize(
    ("severities", "status"),
    [
        ([], Status.PASS), ([Severity.INFO], Status.PASS), ([Severity.UNKNOWN, Severity.INFO], Status.UNKNOWN),
        ([Severity.UNKNOWN, Severity.WARN], Status.WARN), ([Severity.WARN, Severity.FAIL], Status.FAIL),
    ],
)  # fmt: skip
def test_the_worst_finding_decides(severities: list[Severity], status: Status) -> None:
    assert status_of([finding(s) for s in severities], [], phase=Phase.RUNNING, enough=True) is status


@given(st.lists(st.sampled_from(list(Severity))), st.booleans(), st.sampled_from(list(Phase)))
def test_coverage_and_gates_can_only_worsen(severities: list[Severity], gated: bool, phase: Phase) -> None:
    findings = [finding(s) for s in severities]
    checks = [replace(CHECK, gate="g" if gated else None)]
    full = status_of(findings, [], phase=phase, enough=True)
    gaps = status_of(findings, checks, phase=phase, enough=False)
    assert ORDER.index(gaps) >= ORDER.index(full)
    assert gaps is not Status.PASS


def test_a_gate_of_an_optional_check_leaves_the_verdict_alone() -> None:
    optional = replace(CHECK, required=False, gate="timing")
    assert status_of([], [optional, CHECK], phase=Phase.RUNNING, enough=True) is Status.PASS


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FINISHED])
def test_nothing_but_stopped_checks_is_never_a_pass(phase: Phase) -> None:
    optional = replace(CHECK, required=False, gate="not_recorded")
    assert status_of([], [optional, optional], phase=phase, enough=True) is Status.UNKNOWN
    assert status_of([], [replace(optional, required=True)], phase=Phase.RUNNING, enough=True) is Status.UNKNOWN


def test_a_finished_job_is_not_judged_by_its_past_speed() -> None:
    slow = finding(id="straggler")
    early = finding(Severity.FAIL, id="early_exit")
    settled = settle([slow, early], phase=Phase.FINISHED, required=frozenset({"early_exit"}), enough=True)
    assert [(f.id, f.severity) for f in settled] == [("early_exit", Severity.FAIL), ("straggler", Severity.INFO)]


def test_allowed_gaps_are_told_for_information() -> None:
    gap = finding(Severity.UNKNOWN, Kind.COVERAGE)
    assert settle([gap], phase=Phase.RUNNING, required=NONE, enough=True)[0].severity is Severity.INFO
    assert settle([gap], phase=Phase.RUNNING, required=NONE, enough=False)[0].severity is Severity.UNKNOWN


def row(status: str = "running", **more: Any) -> dict[str, Any]:
    return {
        "status": status, "answered": True, "state": "S", "open_phase": None, "last_local_step": 5, "last_global_step": 5,
        "median_step_s": 0.02, "step_source": "user", "last_seq": 9,
    } | more  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "phase"),
    [
        ([], Phase.STARTING),
        ([row(), row()], Phase.RUNNING),
        ([row(), row("dead")], Phase.FAILED),
        ([row("finished"), row("dead")], Phase.FAILED),
        ([row("finished"), row("finished")], Phase.FINISHED),
        ([row("finished"), row()], Phase.RUNNING),
        ([row("finished"), row("missing", answered=False)], Phase.RUNNING),
        ([row(open_phase="checkpoint"), row()], Phase.CHECKPOINT),
        ([row(open_phase="eval"), row(open_phase="eval")], Phase.EVAL),
        ([row(state="T"), row(state="T")], Phase.SUSPENDED),
        ([row(state="T"), row()], Phase.RUNNING),
        ([row(last_local_step=0), row(last_local_step=None)], Phase.STARTING),
        ([row(last_local_step=0), row(last_local_step=1)], Phase.RUNNING),
        ([row(last_local_step=None, step_source=None, last_seq=10)], Phase.STARTING),
        ([row(last_local_step=None, step_source=None, last_seq=500)], Phase.RUNNING),
        ([row(answered=False), row("stale", answered=False)], Phase.RUNNING),
        ([row("missing", answered=False)], Phase.STARTING),
    ],
)  # fmt: skip
def test_phase(rows: list[dict[str, Any]], phase: Phase) -> None:
    assert phase_of(rows) is phase


VIEW = JobView(
    "j", "g", 4,
    tuple(RankInfo(r, "g", f"node-{r // 2}", f"n{r // 2}", status=RankStatus.RUNNING) for r in range(4)), (), None,  # type: ignore[arg-type]
)  # fmt: skip


@pytest.mark.parametrize("kind", [k for k in Kind if k is not Kind.NODE])
def test_only_evidence_against_a_node_makes_it_a_candidate(kind: Kind) -> None:
    assert drain_candidates([finding(Severity.FAIL, kind, hosts=("n1",), ranks=(2, 3))], VIEW) == ()


def test_a_node_is_drained_on_sure_evidence_and_inspected_on_other() -> None:
    weak = finding(Severity.FAIL, Kind.NODE, hosts=("n1",), ranks=(2, 3), confidence="low")
    (candidate,) = drain_candidates([weak], VIEW)
    assert (candidate.node, candidate.host, candidate.ranks, candidate.action) == ("node-1", "n1", (2, 3), "inspect")
    (candidate,) = drain_candidates([weak, replace(weak, id="g", confidence="high")], VIEW)
    assert (candidate.action, candidate.findings) == ("drain", ("f", "g"))
    assert drain_candidates([replace(weak, severity=Severity.INFO)], VIEW) == ()


def test_recommendations() -> None:
    required = frozenset({"f"})
    fail, warn = finding(Severity.FAIL), finding(Severity.WARN)
    node = finding(Severity.FAIL, Kind.NODE, hosts=("n1",), ranks=(2, 3), confidence="low")
    sure = drain_candidates([replace(node, confidence="high")], VIEW)
    assert recommendation(Status.PASS, [], (), required) == "none"
    assert recommendation(Status.WARN, [warn], (), required) == "wait"
    assert recommendation(Status.WARN, [warn], (), NONE) == "none"
    assert recommendation(Status.UNKNOWN, [], (), required) == "wait"
    assert recommendation(Status.FAIL, [fail], (), required) == "requeue"
    assert recommendation(Status.FAIL, [fail], (), NONE) == "none"
    assert recommendation(Status.FAIL, [node], drain_candidates([node], VIEW), required) == "requeue_excluding"
    assert recommendation(Status.FAIL, [node], sure, required) == "drain"
