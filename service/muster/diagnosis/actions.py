"""What to do about a verdict: hosts to look at or to drain, and one recommendation for a scheduler. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from muster.diagnosis.evaluation import DrainCandidate
from muster.model import Finding, JobView, Kind, Severity, Status


def drain_candidates(findings: Sequence[Finding], view: JobView) -> tuple[DrainCandidate, ...]:
    """Hosts named by evidence against the node itself, never by the conduct of a process, stage, data or code.

    `drain` only where the evidence is of high confidence, else `inspect`.
    """
    found: dict[str, DrainCandidate] = {}
    for finding in findings:
        if finding.kind is not Kind.NODE or finding.severity not in (Severity.WARN, Severity.FAIL):
            continue
        for host in finding.hosts:
            ranks = tuple(r.rank for r in view.ranks if r.host == host and r.rank in finding.ranks)
            node = next((r.node for r in view.ranks if r.host == host and r.node), host)
            action = "drain" if finding.confidence == "high" and finding.severity is Severity.FAIL else "inspect"
            old = found.get(host)
            if old is None:
                found[host] = DrainCandidate(
                    node, host, ranks, action, finding.id, finding.message, finding.confidence, (finding.id,),
                    finding.confirmations, finding.since,
                )  # fmt: skip
            else:
                found[host] = DrainCandidate(
                    node, host, tuple(sorted({*old.ranks, *ranks})),
                    "drain" if "drain" in (old.action, action) else "inspect",
                    old.reason_code, old.reason, old.confidence, (*old.findings, finding.id),
                    max(old.confirmations, finding.confirmations), old.first_seen,
                )  # fmt: skip
    return tuple(found[h] for h in sorted(found))


def recommendation(
    status: Status, findings: Sequence[Finding], candidates: Sequence[DrainCandidate], required: frozenset[str]
) -> str:
    """none | wait | requeue | requeue_excluding | drain. `required`: names of the findings of required checks: only a job
    that does not live or move is worth a requeue, a slow one is not."""
    if any(c.action == "drain" for c in candidates):
        return "drain"
    stuck = {f.severity for f in findings if f.id in required and f.kind is not Kind.COVERAGE}
    if Severity.FAIL in stuck:
        return "requeue_excluding" if candidates else "requeue"
    return "wait" if status is Status.UNKNOWN or Severity.WARN in stuck else "none"
