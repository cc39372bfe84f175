"""Prometheus metrics of the gateway, in a registry of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """What is counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "muster_http_requests", "HTTP requests.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "muster_http_request_seconds", "Time to answer.", ["route"], buckets=_BUCKETS, registry=self.registry
        )
        self.evaluations = Counter(
            "muster_evaluations", "Evaluations of jobs by status.", ["trigger", "status"], registry=self.registry
        )
        self.evaluation_seconds = Histogram(
            "muster_evaluation_seconds", "Time of an evaluation.", buckets=_BUCKETS, registry=self.registry
        )
        self.bytes_moved = Counter("muster_probe_bytes", "Bytes of answers from probes.", registry=self.registry)
        self.registrations = Counter("muster_registrations", "Registrations and heartbeats.", registry=self.registry)
        self.jobs = Gauge("muster_jobs", "Jobs in the registry.", registry=self.registry)
        self.job_status = Gauge(
            "muster_job_status", "1 for the last verdict of a job.", ["job", "status"], registry=self.registry
        )
        self.rank_states = Gauge(
            "muster_job_ranks", "Ranks of a job by state in its last evaluation.", ["job", "state"], registry=self.registry
        )

    def text(self, visible: Collection[str] | None = None) -> bytes:
        """In Prometheus' text format. `visible`: the only jobs to show; None shows all."""
        return generate_latest(self.registry if visible is None else _Visible(self.registry, visible))


class _Visible(CollectorRegistry):
    """A registry without the series of other jobs."""

    def __init__(self, registry: CollectorRegistry, jobs: Collection[str]) -> None:
        super().__init__()
        self._shown = registry
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        for metric in self._shown.collect():
            metric.samples = [s for s in metric.samples if s.labels.get("job", None) in (None, *self._jobs)]
            yield metric
