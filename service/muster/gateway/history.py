"""What the background evaluator remembers of each job: its last verdict, since when, and how often it was confirmed.

Only the evaluator's own rounds count, so `since` and `confirmations` do not depend on who asks, or how often.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from muster.diagnosis.evaluation import Evaluation
from muster.federation.values import json_value
from muster.registry.store import Store

Key = str


@dataclass(slots=True)
class _Seen:
    since: str
    confirmations: int


@dataclass(slots=True)
class _Job:
    status: str
    since: str
    findings: dict[Key, _Seen] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """The last background evaluation of a job, as it was answered."""

    evaluation: Evaluation
    body: dict[str, Any]
    at: datetime


class VerdictHistory:
    """Thread-safe. Survives a restart of the gateway through the store, which is written when something changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        self._jobs: dict[str, _Job] = {job: _parse(body) for job, body in store.verdicts().items()}

    def kept(self, job: str) -> Kept | None:
        """The last background evaluation."""
        with self._lock:
            return self._kept.get(job)

    def record(self, job: str, evaluation: Evaluation, body: dict[str, Any], at: datetime) -> dict[str, Any]:
        """Count a background evaluation, keep it, and return its body with since and confirmations."""
        now = str(json_value(at))
        with self._lock:
            old = self._jobs.get(job)
            new = _Job(body["status"], old.since if old and old.status == body["status"] else now)
            for key in {_key(f) for f in body["findings"]}:
                seen = old.findings.get(key) if old else None
                new.findings[key] = _Seen(seen.since, seen.confirmations + 1) if seen else _Seen(now, 1)
            changed = old is None or old.status != new.status or old.findings.keys() != new.findings.keys()
            self._jobs[job] = new
            annotated = _annotated(body, new)
            self._kept[job] = Kept(evaluation, annotated, at)
        if changed:
            self._store.put_verdict(job, at, _dump(new))
        return annotated

    def annotate(self, job: str, body: dict[str, Any]) -> dict[str, Any]:
        """The body of a fresh evaluation with what is remembered of its findings."""
        with self._lock:
            return _annotated(body, self._jobs.get(job))


def _annotated(body: dict[str, Any], known: _Job | None) -> dict[str, Any]:
    if known is None:
        return body
    findings = [_with_seen(f, known.findings.get(_key(f))) for f in body["findings"]]
    by_id: dict[str, _Seen] = {}
    for finding in findings:
        seen = known.findings.get(_key(finding))
        if seen is not None and (finding["id"] not in by_id or seen.since < by_id[finding["id"]].since):
            by_id[finding["id"]] = seen
    candidates = []
    for candidate in body.get("drain_candidates", []):
        seen_of = [by_id[i] for i in candidate.get("findings", []) if i in by_id]
        if seen_of:
            first = min(s.since for s in seen_of)
            candidate = candidate | {"first_seen": first, "confirmations": max(s.confirmations for s in seen_of)}
        candidates.append(candidate)
    since = {"since": known.since} if known.status == body["status"] else {}
    return body | {"findings": findings, "drain_candidates": candidates} | since


def _with_seen(finding: dict[str, Any], seen: _Seen | None) -> dict[str, Any]:
    return finding if seen is None else finding | {"since": seen.since, "confirmations": seen.confirmations}


def _key(finding: Mapping[str, Any]) -> Key:
    ranks = ",".join(str(r) for r in finding.get("ranks", []))
    return f"{finding.get('diagnosis', '')}/{finding['id']}/{ranks}"


def _dump(job: _Job) -> dict[str, object]:
    findings = {key: {"since": s.since, "confirmations": s.confirmations} for key, s in job.findings.items()}
    return {"status": job.status, "since": job.since, "findings": findings}


def _parse(body: Mapping[str, Any]) -> _Job:
    try:
        findings = {str(k): _Seen(str(v["since"]), int(v["confirmations"])) for k, v in body["findings"].items()}
        return _Job(str(body["status"]), str(body["since"]), findings)
    except (KeyError, TypeError, ValueError, AttributeError):
        return _Job("", "")
