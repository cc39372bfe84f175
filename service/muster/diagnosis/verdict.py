"""The verdict: the worst of findings and coverage. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from muster.diagnosis.evaluation import CheckResult
from muster.model import Coverage, Finding, JobView, Kind, Phase, RankStatus, Severity, Status

_SEVERITY = {Severity.INFO: 0, Severity.UNKNOWN: 1, Severity.WARN: 2, Severity.FAIL: 3}
_STATUS = (Status.PASS, Status.UNKNOWN, Status.WARN, Status.FAIL)
_SETTLED = frozenset({Phase.FINISHED, Phase.FAILED})


def uncovered(coverage: Coverage, view: JobView) -> int:
    """How many ranks the answer knows too little about. Ranks that had ended cleanly cannot change any more, so nothing is
    missed when they do not answer; but where nobody answers there is no data, and no data is `unknown`."""
    if coverage.answered == 0:
        return view.world_size
    ended = {r.rank for r in view.ranks if r.status is RankStatus.FINISHED}
    return sum(m.rank not in ended for m in coverage.missing)


def covered(coverage: Coverage, view: JobView) -> float:
    """Share of the roster that is not uncovered; 0 for an empty one."""
    return 1 - uncovered(coverage, view) / view.world_size if view.world_size > 0 else 0.0


def settle(findings: Iterable[Finding], *, phase: Phase, required: frozenset[str], enough: bool) -> tuple[Finding, ...]:
    """Findings in the order of their weight, after two rules: the past speed of a finished job is no trouble any more, and
    gaps that the caller allows (`enough`) are told but do not count. `required`: names of the findings of required checks.
    """
    kept = []
    for finding in findings:
        past = phase is Phase.FINISHED and finding.id not in required
        allowed = enough and finding.kind is Kind.COVERAGE and finding.severity is Severity.UNKNOWN
        kept.append(replace(finding, severity=Severity.INFO) if past or allowed else finding)
    return tuple(sorted(kept, key=lambda f: -_SEVERITY[f.severity]))


def status_of(findings: Sequence[Finding], checks: Sequence[CheckResult], *, phase: Phase, enough: bool) -> Status:
    """fail > warn > unknown > pass. Coverage can only worsen: gaps beyond what is allowed, and a required check that could
    not conclude, make `unknown` of `pass`. Whether ranks move is no question any more once the job has ended."""
    worst = max((_SEVERITY[f.severity] for f in findings), default=0)
    return _STATUS[max(worst, 1 if is_blind(checks, phase=phase, enough=enough) else 0)]


def is_blind(checks: Sequence[CheckResult], *, phase: Phase, enough: bool) -> bool:
    """Whether too little is known for a verdict better than `unknown`: ranks are missing, a required check could not
    conclude, or none could. A `warn` may stand beside it: that one is true, and what else there is cannot be seen."""
    stopped = [c for c in checks if c.gate is not None]
    return not enough or any(c.required and phase not in _SETTLED for c in stopped) or len(stopped) == len(checks) > 0


def check_status(findings: Iterable[Finding], gate: str | None) -> Status:
    """The worst of a check's findings; unknown where a gate stops it."""
    worst = max((_SEVERITY[f.severity] for f in findings), default=0)
    return _STATUS[max(worst, 0 if gate is None else 1)]
