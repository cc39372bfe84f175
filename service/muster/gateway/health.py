"""Evaluate a job on request or in the background, and keep the books."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio
import anyio.to_thread
import structlog

from muster.diagnosis.evaluation import Evaluation
from muster.diagnosis.report import health_json
from muster.diagnosis.service import DiagnosisService
from muster.errors import MusterError
from muster.gateway.history import VerdictHistory
from muster.gateway.metrics import Metrics
from muster.model import RankState, RankStatus
from muster.registry.registry import Registry

DEFAULT = ("job_health",)
_OVER = frozenset({RankStatus.FINISHED, RankStatus.DEAD, RankStatus.MISSING})


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for the health of a job. `max_age_s`: how old a kept verdict may be; 0 wants a fresh one."""

    job: str
    ids: tuple[str, ...] = DEFAULT
    params: Mapping[str, Any] | None = None
    deadline_s: float = 10.0
    min_coverage: float = 1.0
    lang: str = "en"
    max_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Health:
    """The answer: the evaluation and the body of the health document."""

    evaluation: Evaluation
    body: dict[str, Any]


class HealthDesk:
    """Where requests for a job's health come, and the evaluator's own."""

    def __init__(
        self,
        registry: Registry,
        service: DiagnosisService,
        history: VerdictHistory,
        metrics: Metrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._registry = registry
        self._service = service
        self._history = history
        self._metrics = metrics
        self._clock = clock

    async def fresh(self, ask: Ask) -> Health:
        """Evaluate now, or give the kept verdict where that is young enough. Raises JobNotFound, ParameterError,
        DiagnosisNotFound, Busy."""
        kept = self._history.kept(ask.job)
        plain = ask.ids == DEFAULT and not ask.params and ask.lang == "en"
        alike = kept is not None and plain and kept.min_coverage == ask.min_coverage
        if kept is not None and alike and (self._clock() - kept.at).total_seconds() <= ask.max_age_s:
            self._registry.view(ask.job, self._clock())  # a job that is gone has no verdict either
            return Health(kept.evaluation, kept.body)
        evaluation = await self._evaluate(ask, "request")
        return Health(evaluation, self._history.annotate(ask.job, health_json(evaluation)))

    async def prepare(self) -> None:
        """Plan ahead what requests will ask. What goes wrong is left to the request that meets it."""
        try:
            await self._service.prepare()
        except Exception:
            structlog.get_logger("muster.gateway").exception("the catalogue could not be planned ahead")

    def history(self, job: str, limit: int) -> dict[str, Any]:
        """What is remembered of a job, with at most so many changes."""
        return self._history.history(job, limit)

    async def round(self, ask: Ask) -> None:
        """One background evaluation."""
        evaluation = await self._evaluate(ask, "background")
        body = await anyio.to_thread.run_sync(
            self._history.record, ask.job, evaluation, health_json(evaluation), self._clock(), ask.min_coverage
        )
        for status in ("pass", "unknown", "warn", "fail"):
            self._metrics.job_status.labels(ask.job, status).set(status == body["status"])
        for state in RankState:
            self._metrics.rank_states.labels(ask.job, state).set(body["coverage"]["states"].get(state, 0))

    async def _evaluate(self, ask: Ask, trigger: str) -> Evaluation:
        started = time.perf_counter()
        view = self._registry.view(ask.job, self._clock())
        evaluation = await self._service.evaluate(
            view,
            ask.ids,
            params=ask.params or {},
            deadline_s=ask.deadline_s,
            min_coverage=ask.min_coverage,
            lang=ask.lang,
        )
        self._metrics.evaluations.labels(trigger, evaluation.verdict.status.value).inc()
        self._metrics.evaluation_seconds.observe(time.perf_counter() - started)
        self._metrics.bytes_moved.inc(evaluation.bytes_moved)
        return evaluation


class Evaluator:
    """Evaluates every job that still has something to say, again and again."""

    def __init__(
        self,
        desk: HealthDesk,
        registry: Registry,
        clock: Callable[[], datetime],
        *,
        every_s: float,
        deadline_s: float,
        min_coverage: float,
        at_once: int = 4,
    ) -> None:
        self._desk = desk
        self._registry = registry
        self._clock = clock
        self._every_s = every_s
        self._deadline_s = min(deadline_s, every_s) if every_s else deadline_s
        self._min_coverage = min_coverage
        self._at_once = at_once
        self._settled: dict[str, object] = {}
        self._log = structlog.get_logger("muster.evaluator")

    async def run(self) -> None:
        """For ever; a round that fails is logged and the next one comes."""
        while True:
            started = time.monotonic()
            await self.once()
            await anyio.sleep(max(0.1, self._every_s - (time.monotonic() - started)))

    async def once(self) -> None:
        """Evaluate each running job once. A job whose ranks have all ended is evaluated once more and then left."""
        limiter = anyio.Semaphore(self._at_once)
        async with anyio.create_task_group() as group:
            for job in self._due():
                group.start_soon(self._one, job, limiter)

    def _due(self) -> Sequence[str]:
        due = []
        for summary in self._registry.jobs(self._clock()):
            state = (summary.generation, tuple(sorted(summary.statuses.items())))
            if set(summary.statuses) <= _OVER and self._settled.get(summary.job) == state:
                continue
            self._settled[summary.job] = state
            due.append(summary.job)
        return due

    async def _one(self, job: str, limiter: anyio.Semaphore) -> None:
        async with limiter:
            try:
                await self._desk.round(Ask(job, deadline_s=self._deadline_s, min_coverage=self._min_coverage))
            except MusterError as error:
                self._log.warning("not evaluated", job=job, code=error.code, detail=error.detail)
            except Exception:
                self._log.exception("evaluation failed", job=job)
