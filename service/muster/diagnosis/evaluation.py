"""What an evaluation of a job concludes, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from muster.diagnosis.schema import Lang
from muster.errors import MusterError
from muster.model import Coverage, Finding, JobView, Phase, Status, Verdict
from muster.sql.plan import OutputColumn, ParamValue


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step gave: rows, or the error that stopped it."""

    diagnosis: str
    name: str
    required: bool
    table: pa.Table | None
    columns: tuple[OutputColumn, ...]
    coverage: Coverage
    error: MusterError | None = None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One question and how it was answered. `gate`: what keeps it from concluding (its status is then unknown), and
    `output` how to open that."""

    diagnosis: str
    name: str
    title: str
    step: str
    required: bool
    status: Status
    observed: float | int | str | None = None
    unit: str = ""
    gate: str | None = None
    output: str | None = None


@dataclass(frozen=True, slots=True)
class DrainCandidate:
    """A host that gives evidence against itself."""

    node: str
    host: str
    ranks: tuple[int, ...]
    action: str  # inspect | drain
    reason_code: str
    reason: str
    confidence: str
    findings: tuple[str, ...]
    confirmations: int = 1
    first_seen: datetime | None = None


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """The newest checkpoint, and its age when the evaluation was made."""

    step: int | None
    age_s: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The answer to "is this job healthy". `step` is the newest global step, `median_step_s` the pace of the job."""

    view: JobView
    diagnoses: tuple[str, ...]
    verdict: Verdict
    coverage: Coverage
    steps: tuple[StepResult, ...]
    checks: tuple[CheckResult, ...]
    step: int | None
    median_step_s: float | None
    drain_candidates: tuple[DrainCandidate, ...]
    recommendation: str  # none | wait | requeue | requeue_excluding | drain
    last_checkpoint: LastCheckpoint | None
    evaluated_at: datetime
    lang: Lang
    blind: bool = False  # too little is known for a verdict better than unknown, whatever else was found
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    elapsed_ms: float = 0.0
    bytes_moved: int = 0
    waves: int = 0
    parameters: Mapping[str, Mapping[str, ParamValue]] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        return self.verdict.status

    @property
    def phase(self) -> Phase:
        return self.verdict.phase

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.verdict.findings
