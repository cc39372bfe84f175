"""From the step results of one diagnosis to its findings: runs the file's SQL and makes findings of its rows."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from muster.diagnosis.catalogue import Loaded
from muster.diagnosis.evaluation import CheckResult
from muster.diagnosis.recording import how_to_record
from muster.diagnosis.schema import Check, Lang
from muster.diagnosis.schema import Finding as Rule
from muster.diagnosis.template import render
from muster.diagnosis.texts import one_line, say
from muster.diagnosis.verdict import check_status, uncovered
from muster.diagnosis.workspace import COVERAGE, RECORDED, ROSTER, Workspace
from muster.engine import quote
from muster.errors import MusterError
from muster.federation.service import StatementResult
from muster.model import Coverage, Evidence, Finding, JobView, Kind, RankState, Severity
from muster.sql.plan import ParamValue

EVIDENCE_ROWS = 16
SERIES_ROWS = 10
MAX_SERIES = 10_000
MAX_FINDINGS = 64
MESSAGE = 600


@dataclass(slots=True)
class Outcome:
    """What a diagnosis made of its steps. `gates`: check to (gate, its text); `gaps`: check to (ranks that answered its
    step, ranks of the job) where these differ."""

    findings: list[Finding] = field(default_factory=list)
    gates: dict[str, tuple[str, str]] = field(default_factory=dict)
    observed: dict[str, float | int | str | None] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    gaps: dict[str, tuple[int, int]] = field(default_factory=dict)

    def checks(self, loaded: Loaded, lang: Lang, findings: Sequence[Finding], enough: bool) -> list[CheckResult]:
        """The checks, given the findings as they count in the end. `enough`: gaps in coverage are allowed."""
        of_check = {f.name: f.check for f in loaded.diagnosis.findings}
        return [self._check(c, loaded, lang, [f for f in findings if of_check.get(f.id) == c.name], enough)
                for c in loaded.diagnosis.checks]  # fmt: skip

    def _check(self, check: Check, loaded: Loaded, lang: Lang, findings: Sequence[Finding], enough: bool) -> CheckResult:
        gate, text = self.gates.get(check.name, (None, None))
        if gate is None and check.name in self.gaps:
            answered, world = self.gaps[check.name]
            text = say(lang, "rests_on", a=answered, n=world)
            gate = "coverage" if check.required and not enough else None
        return CheckResult(
            loaded.diagnosis.id, check.name, check.title.of(lang), check.step, check.required,
            check_status(findings, gate), self.observed.get(check.name), check.unit, gate,
            findings[0].message if findings and gate is None else text,
        )  # fmt: skip


def apply(
    loaded: Loaded,
    workspace: Workspace,
    results: Mapping[str, StatementResult],
    roster: pa.Table,
    view: JobView,
    values: Mapping[str, ParamValue],
    lang: Lang,
) -> Outcome:
    """Run a diagnosis over its step results (by step name). A statement that fails closes the check it belongs to."""
    diagnosis, outcome = loaded.diagnosis, Outcome()
    for name, columns in loaded.columns.items():
        workspace.add(name, columns, results[name].table)
    workspace.add("roster", ROSTER, roster)
    workspace.add_rows("coverage", COVERAGE, _coverage_rows(loaded, results, view))
    held = _recorded(loaded, view)
    workspace.add_rows("recorded", RECORDED, held)
    workspace.add_params(diagnosis.parameters, values)
    for check in diagnosis.checks:
        coverage = results[check.step].coverage
        if uncovered(coverage, view):
            outcome.gaps[check.name] = (coverage.answered, coverage.world_size)
        error = results[check.step].error
        if absent := _absent(check, loaded, {name for name, _, _ in held}, view):
            outcome.gates[check.name] = ("not_recorded", how_to_record(absent, diagnosis.recording, lang))
        elif error is not None:
            outcome.gates[check.name] = _step_failed(check.step, error, lang)
    failed = {s.name: (s.name, error) for s in diagnosis.steps
              if (error := results[s.name].error) is not None and not s.supplement}  # fmt: skip
    broken: dict[str, MusterError] = {}
    for derived in diagnosis.derived:
        cause = _cause(derived.sql, failed)
        if cause is not None:
            failed[derived.name] = cause
        try:
            workspace.derive(derived.name, derived.sql)
        except MusterError as error:
            broken[derived.name] = error
    root = next(iter(broken.values()), None)
    for check in diagnosis.checks:
        if check.sql is None or check.name in outcome.gates:
            continue
        cause = _cause(check.sql, failed)
        if cause is not None:
            outcome.gates[check.name] = _step_failed(*cause, lang)
        else:
            _gate(check, loaded, workspace, outcome, lang, root)
    for rule in diagnosis.findings:
        cause = _cause(rule.sql, failed)
        if cause is not None:
            outcome.gates.setdefault(rule.check, _step_failed(*cause, lang))
            continue
        try:
            found = workspace.ask(rule.sql, MAX_FINDINGS)
            outcome.findings += [_finding(rule, row, loaded, workspace, lang) for row in found]
        except (MusterError, ValueError) as error:
            _broken(rule.check, rule.name, root or error, outcome, lang)
    for fact in diagnosis.facts:
        try:
            facts = workspace.ask(fact.sql, 1)
        except MusterError:
            continue  # the step it reads has its own error in the report
        if facts:
            outcome.facts[fact.name] = facts[0]
    return outcome


def _cause(sql: str, failed: Mapping[str, tuple[str, MusterError]]) -> tuple[str, MusterError] | None:
    """The failed step, with its error, on which a statement rests, if any. What is not there looks like nothing found."""
    if not failed:
        return None
    words = set(re.findall(r"\w+", sql))
    return next((failed[name] for name in failed if name in words), None)


def _step_failed(step: str, error: MusterError, lang: Lang) -> tuple[str, str]:
    return "step_failed", say(lang, "step_failed", step=step, error=one_line(error.detail))


def _gate(
    check: Check, loaded: Loaded, workspace: Workspace, outcome: Outcome, lang: Lang, root: MusterError | None
) -> None:
    try:
        rows = workspace.ask(check.sql or "", 1)
    except MusterError as error:
        _broken(check.name, check.name, root or error, outcome, lang)
        return
    if not rows:
        return
    outcome.observed[check.name] = _number(rows[0]["observed"])
    gate = rows[0]["gate"]
    if gate is not None:
        text = loaded.diagnosis.gates.get(gate)
        outcome.gates[check.name] = (gate, one_line(text.of(lang)) if text else gate)


def _broken(check: str, name: str, error: Exception, outcome: Outcome, lang: Lang) -> None:
    text = say(lang, "statement_failed", name=name, error=one_line(str(error)))
    outcome.gates.setdefault(check, ("statement_failed", text))


def _finding(rule: Rule, row: Mapping[str, Any], loaded: Loaded, workspace: Workspace, lang: Lang) -> Finding:
    ranks, victims = _ranks(row.get("ranks")), _ranks(row.get("victims"))
    hosts = tuple(sorted({h for h in row.get("hosts") or () if h is not None}))
    onset = row.get("onset_ns")
    return Finding(
        id=rule.name,
        diagnosis=loaded.diagnosis.id,
        severity=rule.severity or Severity(row["severity"]),
        kind=rule.kind or Kind(row["kind"]),
        message=one_line(render(rule.message.of(lang), row), MESSAGE),
        ranks=ranks,
        victims=tuple(v for v in victims if v not in ranks),
        hosts=hosts,
        observed=_number(row.get("observed")),
        threshold=_number(row.get("threshold")),
        confidence=str(row.get("confidence") or "medium"),
        step=rule.step,
        evidence=_evidence(rule, (*ranks, *(v for v in victims if v not in ranks)), hosts, loaded, workspace),
        onset_step=row.get("onset_step"),
        onset_time=None if onset is None else datetime.fromtimestamp(onset / 1e9, UTC),
        next=tuple(dict.fromkeys([*(row.get("next") or ()), *rule.next])),
    )


def _ranks(values: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(sorted({int(v) for v in values or () if v is not None}))


def _evidence(rule: Rule, ranks: Sequence[int], hosts: Sequence[str], loaded: Loaded, workspace: Workspace) -> Evidence:
    if not rule.evidence:
        return Evidence()
    types = {c.name: c for c in loaded.columns[rule.step]}
    sql = f"SELECT {', '.join(quote(n) for n in rule.evidence)} FROM {quote(rule.step)}"
    if "rank" in types:
        shown = ranks[:EVIDENCE_ROWS]
        order = " ".join(f"WHEN {r} THEN {i}" for i, r in enumerate(shown))
        where = f" WHERE rank IN ({', '.join(map(str, shown))}) ORDER BY CASE rank {order} END" if shown else ""
        rows = workspace.ask(sql + where, EVIDENCE_ROWS)
    elif "host" in types:
        of_hosts = ", ".join("'" + h.replace("'", "''") + "'" for h in hosts)
        rows = workspace.ask(f"{sql} WHERE host IN ({of_hosts})" if hosts else sql, EVIDENCE_ROWS)
    else:
        rows = workspace.ask(sql, MAX_SERIES)[-SERIES_ROWS:]
    return Evidence(tuple(types[n] for n in rule.evidence), tuple(tuple(r.values()) for r in rows))


def _number(value: Any) -> float | int | str | None:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, int | float | str):
        return value
    return str(value)


def _recorded(loaded: Loaded, view: JobView) -> list[tuple[str, int, str]]:
    """Which of the tables that the diagnosis reads are offered for which rank; a shard that has not said offers all."""
    wanted = sorted(loaded.diagnosis.requires)
    return [
        (name, rank, shard.host)
        for shard in view.shards
        for name in wanted
        if shard.tables is None or name in shard.tables
        for rank in shard.ranks
    ]


def _absent(check: Check, loaded: Loaded, held: Collection[str], view: JobView) -> list[str]:
    """The tables for want of which a check cannot conclude. Where there is no shard at all, that is not why."""
    if not view.shards:
        return []
    read = loaded.tables[check.step]
    lacking = sorted(t for t in check.needs if t not in held)
    return lacking or (sorted(read) if read and not read & set(held) else [])


def _coverage_rows(loaded: Loaded, results: Mapping[str, StatementResult], view: JobView) -> list[tuple[Any, ...]]:
    rows = []
    required = loaded.diagnosis.required_steps
    for name, result in results.items():
        missing = {m.rank: m for m in result.coverage.missing}
        rest = _rest(result.coverage)
        for info in view.ranks:
            gap = missing.get(info.rank)
            state, reason = (gap.state, gap.reason) if gap else (rest, "")
            rows.append((name, name in required, info.rank, info.host, state.value, reason))
    return rows


def _rest(coverage: Coverage) -> RankState:
    return RankState.ANSWERED if coverage.answered else RankState.PRUNED
