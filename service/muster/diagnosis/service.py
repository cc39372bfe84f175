"""Evaluate diagnoses of a job: one federated run for all their steps, then findings, verdict and phase."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.to_thread

from muster.diagnosis import verdict as rules_of_verdict
from muster.diagnosis.actions import drain_candidates, recommendation
from muster.diagnosis.catalogue import DiagnosisCatalogue, Loaded
from muster.diagnosis.evaluation import CheckResult, Evaluation, LastCheckpoint, StepResult
from muster.diagnosis.params import resolve, used
from muster.diagnosis.phase import Snapshot, snapshot
from muster.diagnosis.rules import Outcome, apply
from muster.diagnosis.schema import LANGS, Lang
from muster.diagnosis.texts import say, summary
from muster.diagnosis.workspace import Desk
from muster.errors import ParameterError
from muster.federation.coverage import Outcome as ShardOutcome
from muster.federation.coverage import coverage_of, merged
from muster.federation.nodes import cluster_nodes
from muster.federation.service import Federation, StatementResult
from muster.model import Coverage, Finding, JobView, RankState, Status, Verdict
from muster.sql.plan import OutputColumn, ParamValue, Statement
from muster.tables import REGISTRY

DEFAULT = "job_health"
ALL = "all"
SNAPSHOT_STEP = "cluster_snapshot"
"""The step of job_health from which phase, step and pace are read, whatever diagnoses are asked for."""
_RESERVE = 0.15  # share of the deadline that is kept for the findings
_Given = Mapping[str, ParamValue]


class DiagnosisService:
    """Answers "is this job healthy" for a view of a job. Safe to use from many tasks at once."""

    def __init__(self, catalogue: DiagnosisCatalogue, federation: Federation, *, desk: Desk | None = None) -> None:
        self.catalogue = catalogue
        self._federation = federation
        self._desk = desk or Desk()
        self._snapshot = next(s for s in catalogue.get(DEFAULT).diagnosis.steps if s.name == SNAPSHOT_STEP)

    def close(self) -> None:
        self._desk.close()

    def choose(self, ids: Sequence[str]) -> list[Loaded]:
        """The diagnoses of these ids, each of which may be several with commas; `all` means every one. Raises
        DiagnosisNotFound."""
        names = _names(ids)
        if ALL in names:
            return list(self.catalogue)
        return [self.catalogue.get(id) for id in names]

    async def evaluate(
        self,
        view: JobView,
        ids: Sequence[str] = (DEFAULT,),
        *,
        params: _Given | None = None,
        deadline_s: float = 10.0,
        min_coverage: float = 1.0,
        lang: str = "en",
    ) -> Evaluation:
        """The verdict on a job.

        `params`: `name` or `diagnosis.name` to a value or its text. `deadline_s`: for all of it. `min_coverage`: share of
        the ranks (0 to 1) that must be covered for a pass. Raises DiagnosisNotFound, ParameterError, Busy, OverBudget.
        """
        started = time.monotonic()
        chosen = self.choose(ids)
        language = _check_arguments(deadline_s, min_coverage, lang)
        values = resolve([x.diagnosis for x in chosen], params or {})
        unknown = _of_unknown_tables(chosen, view)
        statements = [s for s in self._statements(chosen, values) if s.id not in unknown]
        once, same = _once(statements)
        asked = await self._federation.run(once, view, deadline_s=deadline_s * (1 - _RESERVE), lane="diagnosis")
        results = {**asked, **{id: asked[first] for id, first in same.items()}, **unknown}
        left = max(0.2, deadline_s - (time.monotonic() - started))
        leading = frozenset({DEFAULT} if ALL in _names(ids) else (x.diagnosis.id for x in chosen))
        return await anyio.to_thread.run_sync(
            self._conclude, view, chosen, leading, values, results, left, min_coverage, language, started
        )

    async def prepare(self, pause_s: float = 2.0) -> None:
        """Plan the statements of the catalogue with the defaults of their parameters, so that the first request does not
        wait for that: the main diagnosis at once, then one after another, `pause_s` seconds apart."""
        nobody = JobView("", None, 0, (), (), datetime.now(UTC))
        for loaded in sorted(self.catalogue, key=lambda x: x.diagnosis.id != DEFAULT):
            values = resolve([loaded.diagnosis], {})
            await self._federation.plan(self._statements([loaded], values), nobody)
            await anyio.sleep(pause_s)

    def _with_known_next(self, finding: Finding) -> Finding:
        """What to look at next, as far as this catalogue has it."""
        return replace(finding, next=tuple(n for n in finding.next if n in self.catalogue.ids))

    def _statements(self, chosen: Sequence[Loaded], values: Mapping[str, Mapping[str, ParamValue]]) -> list[Statement]:
        statements = []
        for loaded in chosen:
            given = values[loaded.diagnosis.id]
            use_global = given.get("use_global") is not False
            for step in loaded.diagnosis.steps:
                values_of = used(step.sql, given)
                statements.append(Statement(f"{loaded.diagnosis.id}.{step.name}", step.sql, values_of, use_global))
        if _id(SNAPSHOT_STEP) not in {s.id for s in statements}:
            statements.append(Statement(_id(SNAPSHOT_STEP), self._snapshot.sql))
        return statements

    def _conclude(
        self,
        view: JobView,
        chosen: Sequence[Loaded],
        leading: frozenset[str],
        values: Mapping[str, Mapping[str, ParamValue]],
        results: Mapping[str, StatementResult],
        left_s: float,
        min_coverage: float,
        lang: Lang,
        started: float,
    ) -> Evaluation:
        roster = cluster_nodes(view)
        outcomes: list[tuple[Loaded, Outcome]] = []
        for loaded in chosen:
            own = {s.name: results[f"{loaded.diagnosis.id}.{s.name}"] for s in loaded.diagnosis.steps}
            with self._desk.workspace(left_s) as workspace:
                outcome = apply(loaded, workspace, own, roster, view, values[loaded.diagnosis.id], lang)
            outcomes.append((loaded, outcome))
        now = _snapshot_of(results[_id(SNAPSHOT_STEP)], view)
        leaders = [x for x in chosen if x.diagnosis.id in leading]
        coverage = _coverage(leaders, results)
        share = rules_of_verdict.covered(coverage, view)
        enough = view.world_size > 0 and share >= min_coverage
        required = _required_findings(leaders)
        found = [self._with_known_next(f) for _, o in outcomes for f in o.findings]
        findings = rules_of_verdict.settle(found, phase=now.phase, required=required, enough=enough)
        checks = tuple(
            c
            for x, o in outcomes
            for c in o.checks(x, lang, [f for f in findings if f.diagnosis == x.diagnosis.id], enough)
        )
        asked = [c for c in checks if c.diagnosis in leading]
        status = rules_of_verdict.status_of(findings, asked, phase=now.phase, enough=enough)
        candidates = drain_candidates(findings, view)
        facts = {f"{x.diagnosis.id}.{n}": row for x, o in outcomes for n, row in o.facts.items()}
        done = next(iter(results.values()))
        return Evaluation(
            view=view,
            diagnoses=tuple(x.diagnosis.id for x in chosen),
            verdict=Verdict(status, now.phase, summary(lang, status, now, findings, coverage, _blind(asked)), findings),
            coverage=coverage,
            steps=_steps(chosen, results),
            checks=checks,
            step=now.step,
            median_step_s=now.median_step_s,
            drain_candidates=candidates,
            recommendation=recommendation(status, findings, candidates, required),
            last_checkpoint=_checkpoint(facts.get(_id("last_checkpoint"))),
            evaluated_at=datetime.now(UTC),
            lang=lang,
            blind=rules_of_verdict.is_blind(asked, phase=now.phase, enough=enough),
            notes=_notes(lang, checks, chosen, values, coverage, share, min_coverage),
            facts=facts,
            elapsed_ms=(time.monotonic() - started) * 1000,
            bytes_moved=done.bytes_moved,
            waves=done.waves,
            parameters=values,
        )


def _of_unknown_tables(chosen: Sequence[Loaded], view: JobView) -> dict[str, StatementResult]:
    """Answers of the steps over tables that neither Muster knows nor any shard offers: they cannot be planned, and are no
    error."""
    offered = {name for s in view.shards for name in s.tables or ()} | REGISTRY.keys()
    found = {}
    for loaded in chosen:
        for step in loaded.diagnosis.steps:
            absent = sorted(loaded.tables[step.name] - offered)
            if absent and step.columns is not None and all(s.tables is not None for s in view.shards):
                reason = f"has no table {', '.join(absent)}"
                outcomes = [ShardOutcome(s, s.ranks, RankState.NO_TABLE, f"{s.addr} {reason}") for s in view.shards]
                columns = tuple(OutputColumn(c.name, c.type) for c in loaded.columns[step.name])
                id = f"{loaded.diagnosis.id}.{step.name}"
                found[id] = StatementResult(id, None, columns, coverage_of(view, [outcomes]))
    return found


def _once(statements: Sequence[Statement]) -> tuple[list[Statement], dict[str, str]]:
    """Statements that ask the same are asked once: those, and the ids of the others with the id of what they repeat."""
    firsts: dict[object, Statement] = {}
    same: dict[str, str] = {}
    for statement in statements:
        key = (statement.sql, tuple(sorted(statement.params.items())), statement.use_global)
        first = firsts.setdefault(key, statement)
        if first is not statement:
            same[statement.id] = first.id
    return list(firsts.values()), same


def _names(ids: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.strip() for id in ids for name in id.split(",") if name.strip()))


def _id(step: str) -> str:
    return f"{DEFAULT}.{step}"


def _check_arguments(deadline_s: float, min_coverage: float, lang: str) -> Lang:
    if not 0.05 <= deadline_s <= 600:
        raise ParameterError("The deadline is out of its bounds.", hint="Give 0.05 to 600 seconds.", parameter="deadline")
    if not 0 <= min_coverage <= 1:
        raise ParameterError("min_coverage is not a share.", hint="Give a number from 0 to 1.", parameter="min_coverage")
    for known in LANGS:
        if lang == known:
            return known
    raise ParameterError(f"There are no texts in {lang[:20]!r}.", hint="Give en or zh.", parameter="lang")


def _snapshot_of(result: StatementResult, view: JobView) -> Snapshot:
    """From the step's rows, or from the roster alone where the step failed."""
    if result.table is not None:
        return snapshot(result.table.to_pylist())
    empty: dict[str, Any] = dict.fromkeys(
        ("state", "open_phase", "last_local_step", "last_global_step", "median_step_s", "step_source", "last_seq")
    )
    return snapshot([{**empty, "answered": False, "status": r.status.value} for r in view.ranks])


def _coverage(chosen: Sequence[Loaded], results: Mapping[str, StatementResult]) -> Coverage:
    """The worst over the required steps, or over all where none is."""
    required = [results[f"{x.diagnosis.id}.{s.name}"].coverage for x in chosen for s in x.diagnosis.steps if s.required]
    found = merged(required or [r.coverage for r in results.values()])
    assert found is not None
    return found


def _required_findings(chosen: Sequence[Loaded]) -> frozenset[str]:
    found = set()
    for loaded in chosen:
        required = {c.name for c in loaded.diagnosis.checks if c.required}
        found |= {f.name for f in loaded.diagnosis.findings if f.check in required}
    return frozenset(found)


def _steps(chosen: Sequence[Loaded], results: Mapping[str, StatementResult]) -> tuple[StepResult, ...]:
    steps = []
    for loaded in chosen:
        for step in loaded.diagnosis.steps:
            result = results[f"{loaded.diagnosis.id}.{step.name}"]
            steps.append(
                StepResult(
                    loaded.diagnosis.id,
                    step.name,
                    step.required,
                    result.table,
                    result.columns,
                    result.coverage,
                    result.error,
                )
            )
    return tuple(steps)


def _blind(checks: Sequence[CheckResult]) -> str | None:
    return next((c.output for c in checks if c.required and c.gate is not None), None)


def _notes(
    lang: Lang,
    checks: Sequence[CheckResult],
    chosen: Sequence[Loaded],
    values: Mapping[str, Mapping[str, ParamValue]],
    coverage: Coverage,
    share: float,
    min_coverage: float,
) -> tuple[str, ...]:
    notes = [f"{c.name}: {c.output}" for c in checks if c.gate is not None]
    if any(values[x.diagnosis.id].get("use_global") is False for x in chosen):
        notes.append(say(lang, "coordinator"))
    if min_coverage <= share < 1:
        notes.append(say(lang, "allowed", min=f"{min_coverage:g}", share=f"{share:.0%}"))
    return tuple(dict.fromkeys([*notes, *coverage.notes]))


def _checkpoint(fact: Mapping[str, Any] | None) -> LastCheckpoint | None:
    return None if fact is None else LastCheckpoint(fact.get("step"), fact.get("age_s"))


__all__ = ["DEFAULT", "DiagnosisService", "Evaluation", "Status"]
