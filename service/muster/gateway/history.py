"""What the background evaluator remembers of each job: its last verdict, since when, how often it was confirmed, and how it
came to be.

Only the evaluator's own rounds count, so `since`, `confirmations` and history do not depend on who asks, or how often.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from muster.diagnosis.evaluation import Evaluation
from muster.federation.values import json_value
from muster.registry.store import Store

Key = str
MAX_CHANGES = 200
"""Changes that are kept of a job; older ones are counted only."""
SAVE_EVERY = 20
"""Rounds after which the count of confirmations is written though nothing has changed: what a restart may forget."""
MAX_BRIEFS = 32
"""Findings that one change names."""


@dataclass(slots=True)
class _Seen:
    """A finding that stands: what it is, since when, and how many rounds in a row have confirmed it."""

    since: str
    confirmations: int
    brief: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Job:
    status: str
    since: str
    confirmations: int = 0
    phase: str = ""
    generation: str | None = None
    at: str = ""
    findings: dict[Key, _Seen] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """The last background evaluation of a job, as it was answered."""

    evaluation: Evaluation
    body: dict[str, Any]
    at: datetime
    min_coverage: float = 1.0


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

    def record(
        self, job: str, evaluation: Evaluation, body: dict[str, Any], at: datetime, min_coverage: float = 1.0
    ) -> dict[str, Any]:
        """Count a background evaluation, keep it, and return its body with since and confirmations."""
        now = str(json_value(at))
        with self._lock:
            old = self._jobs.get(job)
            new, change = _next(old, body, now)
            self._jobs[job] = new
            annotated = _annotated(body, new)
            self._kept[job] = Kept(evaluation, annotated, at, min_coverage)
            dump = asdict(new) if change is not None or new.confirmations % SAVE_EVERY == 0 else None
        if dump is not None:
            self._store.put_verdict(job, at, dump)
        return annotated

    def annotate(self, job: str, body: dict[str, Any]) -> dict[str, Any]:
        """The body of a fresh evaluation with what is remembered of its findings."""
        with self._lock:
            return _annotated(body, self._jobs.get(job))

    def history(self, job: str, limit: int) -> dict[str, Any]:
        """What is remembered of a job: its verdict, the findings that stand, and the newest changes, newest first. A job
        that was never evaluated in the background has status null and no changes."""
        with self._lock:
            known = self._jobs.get(job) or _Job("", "")
            return {
                "job": job,
                "status": known.status or None,
                "since": known.since or None,
                "confirmations": known.confirmations,
                "phase": known.phase or None,
                "generation": known.generation,
                "evaluated_at": known.at or None,
                "findings": [
                    s.brief | {"since": s.since, "confirmations": s.confirmations} for s in known.findings.values()
                ],
                "changes": known.changes[::-1][:limit],
                "changes_kept": len(known.changes),
                "changes_dropped": known.dropped,
            }


def _next(old: _Job | None, body: Mapping[str, Any], now: str) -> tuple[_Job, dict[str, Any] | None]:
    """What is known after one more round, and the change that it brought, if any."""
    same = old is not None and old.status == body["status"]
    new = _Job(
        body["status"],
        old.since if old is not None and same else now,
        old.confirmations + 1 if old is not None and same else 1,
        str(body.get("phase") or ""),
        body.get("generation"),
        now,
        changes=old.changes if old is not None else [],
        dropped=old.dropped if old is not None else 0,
    )
    before = old.findings if old is not None else {}
    for finding in body["findings"]:
        key = _key(finding)
        seen = before.get(key)
        first = seen.brief.get("onset") if seen else None
        brief = _brief(finding) | ({"onset": first} if first else {})
        new.findings[key] = _Seen(seen.since if seen else now, seen.confirmations + 1 if seen else 1, brief)
    appeared = [s.brief for k, s in new.findings.items() if k not in before]
    cleared = [
        s.brief | {"since": s.since, "confirmations": s.confirmations} for k, s in before.items() if k not in new.findings
    ]
    moved = old is None or not same or (old.phase, old.generation) != (new.phase, new.generation)
    if not (appeared or cleared or moved):
        return new, None
    change = {
        "at": now,
        "status": new.status,
        "was": old.status or None if old is not None else None,
        "phase": new.phase,
        "generation": new.generation,
        "step": body.get("step"),
        "summary": body.get("summary"),
        "appeared": appeared[:MAX_BRIEFS],
        "cleared": cleared[:MAX_BRIEFS],
    }
    new.changes = [*new.changes, change]
    surplus = len(new.changes) - MAX_CHANGES
    if surplus > 0:
        new.changes = new.changes[surplus:]
        new.dropped += surplus
    return new, change


def _brief(finding: Mapping[str, Any]) -> dict[str, Any]:
    names = ("diagnosis", "id", "severity", "kind", "ranks", "hosts", "message", "confidence", "onset")
    return {n: finding.get(n) for n in names}


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


def _parse(body: Mapping[str, Any]) -> _Job:
    """What was kept, also by versions that kept less; nothing for what cannot be read."""
    try:
        findings = {
            str(k): _Seen(str(v["since"]), int(v["confirmations"]), dict(v.get("brief") or _named(str(k))))
            for k, v in body["findings"].items()
        }
        changes: Sequence[Any] = body.get("changes") or []
        return _Job(
            str(body["status"]),
            str(body["since"]),
            int(body.get("confirmations") or 0),
            str(body.get("phase") or ""),
            body.get("generation"),
            str(body.get("at") or ""),
            findings,
            [dict(c) for c in changes][-MAX_CHANGES:],
            int(body.get("dropped") or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return _Job("", "")


def _named(key: Key) -> dict[str, Any]:
    """Diagnosis, id and ranks of a finding from its key."""
    diagnosis, _, rest = key.partition("/")
    id, _, ranks = rest.partition("/")
    return {"diagnosis": diagnosis, "id": id, "ranks": [int(r) for r in ranks.split(",") if r]}
