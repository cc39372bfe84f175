"""Where a job is in its life, from one row per expected rank."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.model import Phase, RankStatus

UNCOUNTED_OPERATIONS = 50
"""A job that counts no steps is under way once a rank has completed so many operations of a group."""
_STOPPED = frozenset({"T", "t"})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Phase, newest step and pace of the job, and how many of its ranks run and have ended."""

    phase: Phase
    step: int | None
    median_step_s: float | None
    running: int
    finished: int


def snapshot(rows: Sequence[Mapping[str, Any]]) -> Snapshot:
    """`rows` are those of job_health's step cluster_snapshot."""
    steps = [r["last_global_step"] for r in rows if r["last_global_step"] is not None]
    paces = [r["median_step_s"] for r in rows if r["median_step_s"] is not None]
    return Snapshot(
        phase_of(rows),
        max(steps, default=None),
        statistics.median(paces) if paces else None,
        sum(r["status"] == RankStatus.RUNNING for r in rows),
        sum(r["status"] == RankStatus.FINISHED for r in rows),
    )


def phase_of(rows: Sequence[Mapping[str, Any]]) -> Phase:
    """A death is final; a job is finished when every rank is; what is not under way is starting."""
    statuses = {r["status"] for r in rows}
    if RankStatus.DEAD in statuses:
        return Phase.FAILED
    if statuses == {RankStatus.FINISHED}:
        return Phase.FINISHED
    running = [r for r in rows if r["status"] == RankStatus.RUNNING and r["answered"]]
    if not running:
        return Phase.RUNNING if statuses - {RankStatus.MISSING} else Phase.STARTING
    if all(r["state"] in _STOPPED for r in running):
        return Phase.SUSPENDED
    if not under_way(rows):
        return Phase.STARTING
    open_phases = {r["open_phase"] for r in running}
    if "checkpoint" in open_phases:
        return Phase.CHECKPOINT
    return Phase.EVAL if "eval" in open_phases else Phase.RUNNING


def under_way(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a step is complete. Where nothing counts steps, operations tell."""
    if any((r["last_local_step"] or 0) >= 1 for r in rows):
        return True
    uncounted = all(r["step_source"] is None for r in rows)
    return uncounted and any((r["last_seq"] or 0) >= UNCOUNTED_OPERATIONS for r in rows)
