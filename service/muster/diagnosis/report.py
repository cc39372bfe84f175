"""An evaluation as an answer: `application/health+json` (DESIGN §8), a text for a terminal, an HTTP status."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from muster.diagnosis.evaluation import CheckResult, DrainCandidate, Evaluation, StepResult
from muster.diagnosis.template import seconds
from muster.diagnosis.texts import one_line, phase_name, say, status_name
from muster.federation.values import json_value
from muster.model import Coverage, Finding, Kind, Phase, Severity, Status
from muster.wording import number_list

STEP_ROWS = 200
"""Most rows of a step in the answer; `row_count` says how many there are."""
MEDIA_TYPE = "application/health+json"
_CALM = frozenset({Phase.STARTING, Phase.FINISHED, Phase.SUSPENDED})


def http_status(evaluation: Evaluation, on_fail: int = 503) -> int:
    """200 for pass and warn; `on_fail` for fail, and for unknown unless the job is starting, finished or suspended. A warn
    does not hide that too little is known: that is `on_fail` as well."""
    if evaluation.status is Status.FAIL:
        return on_fail
    unknown = evaluation.status is Status.UNKNOWN or evaluation.blind
    return on_fail if unknown and evaluation.phase not in _CALM else 200


def headers(evaluation: Evaluation) -> dict[str, str]:
    """Headers that go with every health answer."""
    return {
        "Muster-Status": evaluation.status.value,
        "Muster-Phase": evaluation.phase.value,
        "Cache-Control": "no-store",
    }


def health_json(evaluation: Evaluation, *, max_rows: int | None = STEP_ROWS) -> dict[str, Any]:
    """The health answer as JSON values. `max_rows`: most rows of a step, None for all."""
    e, view = evaluation, evaluation.view
    checkpoint = e.last_checkpoint
    return {
        "status": e.status.value,
        "phase": e.phase.value,
        "summary": e.verdict.summary,
        "job": view.job,
        "generation": view.generation,
        "world_size": view.world_size,
        "step": e.step,
        "median_step_s": json_value(e.median_step_s),
        "findings": [finding_json(f) for f in e.findings],
        "drain_candidates": [_candidate_json(c) for c in e.drain_candidates],
        "recommendation": e.recommendation,
        "last_checkpoint": None if checkpoint is None else {"step": checkpoint.step, "age_s": json_value(checkpoint.age_s)},
        "coverage": coverage_json(e.coverage),
        "steps": [step_json(s, max_rows) for s in e.steps],
        "checks": {f"{c.diagnosis}:{c.name}": [_check_json(c, e.evaluated_at)] for c in e.checks},
        "notes": list(e.notes),
        "links": {
            "self": f"/jobs/{view.job}/health",
            "nodes": f"/jobs/{view.job}/nodes",
            "query": f"/jobs/{view.job}/query",
            **{d: f"/jobs/{view.job}/diagnoses/{d}" for d in e.diagnoses},
        },
        "diagnoses": list(e.diagnoses),
        "parameters": {d: {n: json_value(v) for n, v in values.items()} for d, values in e.parameters.items()},
        "as_of": {"min": json_value(e.coverage.as_of_min), "max": json_value(e.coverage.as_of_max)},
        "evaluated_at": json_value(e.evaluated_at),
        "elapsed_ms": round(e.elapsed_ms, 1),
        "bytes_moved": e.bytes_moved,
        "round_trips": e.waves,
        "lang": e.lang,
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding, as DESIGN §8 shapes it."""
    onset: dict[str, Any] = {}
    if finding.onset_step is not None:
        onset["step"] = finding.onset_step
    if finding.onset_time is not None:
        onset["time"] = json_value(finding.onset_time)
    return {
        "id": finding.id,
        "diagnosis": finding.diagnosis,
        "severity": finding.severity.value,
        "kind": finding.kind.value,
        "ranks": list(finding.ranks),
        "victims": list(finding.victims),
        "hosts": list(finding.hosts),
        "message": finding.message,
        "observed": json_value(finding.observed),
        "threshold": json_value(finding.threshold),
        "confidence": finding.confidence,
        "step": finding.step,
        "evidence": {
            "columns": [{"name": c.name, "type": c.type} for c in finding.evidence.columns],
            "rows": [[json_value(v) for v in row] for row in finding.evidence.rows],
        },
        "onset": onset or None,
        "since": json_value(finding.since),
        "confirmations": finding.confirmations,
        "next": list(finding.next),
    }


def coverage_json(coverage: Coverage) -> dict[str, Any]:
    """Coverage, as DESIGN §8 shapes it."""
    return {
        "world_size": coverage.world_size,
        "answered": coverage.answered,
        "complete": coverage.complete,
        "states": {s.value: n for s, n in coverage.states.items() if n},
        "missing": [
            {
                "rank": m.rank,
                "host": m.host,
                "state": m.state.value,
                "reason": m.reason,
                "last_seen": json_value(m.last_seen),
            }
            for m in coverage.missing
        ],
        "history": {"oldest_step": coverage.history.oldest_step, "rows_lost": coverage.history.rows_lost},
        "as_of": {"min": json_value(coverage.as_of_min), "max": json_value(coverage.as_of_max)},
        "notes": list(coverage.notes),
    }


def step_json(step: StepResult, max_rows: int | None = STEP_ROWS) -> dict[str, Any]:
    """One step: types, rows, coverage, or the problem that stopped it."""
    shown: list[list[Any]] = []
    if step.table is not None:
        lists = [c.to_pylist() for c in step.table.slice(0, max_rows).columns]
        shown = [[json_value(v) for v in row] for row in zip(*lists, strict=True)]
    return {
        "diagnosis": step.diagnosis,
        "name": step.name,
        "required": step.required,
        "columns": [{"name": c.name, "type": c.type, "exactness": c.exactness.value} for c in step.columns],
        "rows": shown,
        "row_count": step.table.num_rows if step.table is not None else 0,
        "coverage": coverage_json(step.coverage),
        "error": step.error.problem() if step.error is not None else None,
    }


def health_text(evaluation: Evaluation) -> str:
    """A short report for a terminal; ends with a newline. Plain text, no colours."""
    e, lang = evaluation, evaluation.lang
    lines = [e.verdict.summary, ""]
    head = [(say(lang, "job"), e.view.job), (say(lang, "generation"), e.view.generation or "-")]
    head.append((say(lang, "status"), f"{status_name(lang, e.status)} ({phase_name(lang, e.phase)})"))
    head.append((say(lang, "coverage"), _coverage_text(e)))
    if e.last_checkpoint is not None:
        age = "?" if e.last_checkpoint.age_s is None else seconds(e.last_checkpoint.age_s)
        head.append((say(lang, "checkpoint"), f"{e.last_checkpoint.step} ({say(lang, 'ago', age=age)})"))
    head.append((say(lang, "recommendation"), e.recommendation))
    lines += [f"{name}: {value}" for name, value in head]
    lines += ["", say(lang, "findings") + ":"]
    lines += [line for f in e.findings for line in _finding_text(e, f)] or [f"  {say(lang, 'none')}"]
    lines += ["", say(lang, "checks") + ":"]
    for check in e.checks:
        reason = f": {check.output}" if check.gate is not None else ""
        lines.append(f"  {status_name(lang, check.status):8} {check.title}{reason}")
    other = [n for n in e.notes if not any(c.output and n.endswith(c.output) for c in e.checks)]
    if other:
        lines += ["", say(lang, "notes") + ":", *(f"  {one_line(n)}" for n in other)]
    return "\n".join(lines) + "\n"


def _coverage_text(e: Evaluation) -> str:
    answered = say(e.lang, "answered", a=e.coverage.answered, n=e.coverage.world_size)
    if not e.coverage.missing:
        return answered
    by_state: dict[str, list[int]] = {}
    for gap in e.coverage.missing:
        by_state.setdefault(gap.state.value, []).append(gap.rank)
    return answered + "; " + "; ".join(f"{state}: {number_list(ranks)}" for state, ranks in by_state.items())


def _finding_text(e: Evaluation, finding: Finding) -> list[str]:
    lang = e.lang
    mark = finding.severity.value.upper() if finding.severity is not Severity.INFO else "info"
    lines = [f"  {mark:8} {finding.id} ({finding.kind.value}): {finding.message}"]
    if finding.ranks or finding.victims:
        hosts = f" ({', '.join(finding.hosts)})" if finding.hosts else ""
        blamed = number_list(finding.ranks) or "-"
        label = say(lang, "concerned" if finding.kind is Kind.COVERAGE else "blamed")
        lines.append(f"           {label}: {blamed}{hosts}; {say(lang, 'victims')}: "
                     f"{number_list(finding.victims) or '-'}")  # fmt: skip
    if finding.next:
        lines.append(f"           {say(lang, 'next')}: {', '.join(finding.next)}")
    return lines


def _candidate_json(candidate: DrainCandidate) -> dict[str, Any]:
    return {
        "node": candidate.node,
        "host": candidate.host,
        "ranks": list(candidate.ranks),
        "action": candidate.action,
        "reason_code": candidate.reason_code,
        "reason": candidate.reason,
        "confidence": candidate.confidence,
        "confirmations": candidate.confirmations,
        "first_seen": json_value(candidate.first_seen),
        "findings": list(candidate.findings),
    }


def _check_json(check: CheckResult, at: datetime) -> dict[str, Any]:
    return {
        "componentId": check.step,
        "componentType": "diagnosis",
        "title": check.title,
        "status": check.status.value,
        "required": check.required,
        "observedValue": json_value(check.observed),
        "observedUnit": check.unit or None,
        "gate": check.gate,
        "output": check.output,
        "time": json_value(at),
    }
