"""A bundle, asked as the gateway is asked: the methods of `muster.client.Client`, the same planner, diagnoses and answers,
in this process and without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio

from muster.bundle.manifest import NodeEntry, read_manifest
from muster.bundle.parquet import Limits
from muster.bundle.shards import BundleShards
from muster.bundle.view import ranks_of
from muster.client import HealthReport, QueryResult
from muster.diagnosis.catalogue import load
from muster.diagnosis.evaluation import Evaluation
from muster.diagnosis.report import coverage_json, health_json, health_text, http_status
from muster.diagnosis.service import DiagnosisService
from muster.errors import BadRequest, JobNotFound, OverBudget, ShardFailed
from muster.federation.catalogue import catalogue_of
from muster.federation.fanout import Budget
from muster.federation.merge import Merger
from muster.federation.service import Federation, Lane
from muster.federation.values import json_rows
from muster.gateway.shapes import ColumnBody, JobBody, JobDetail, NodeBody, RankBody, TableBody
from muster.model import RankStatus
from muster.sql import explain as explaining
from muster.sql.plan import ParamValue, Statement
from muster.sql.planner import Planner
from muster.tables import NODES, REGISTRY, TAGS

DEADLINE_S = 60.0
MAX_ROWS = 1_000_000
BUDGET = Budget(rows=20_000_000, shard_bytes=2 << 30, total_bytes=4 << 30)
"""Nothing travels: the bounds are those of this machine's memory."""


class Offline:
    """One bundle. `now`: the moment as of which it answers. Raises what reading the bundle raises (`read_manifest`,
    `BundleShards.load`), and what the gateway would."""

    def __init__(self, directory: Path, *, queries: Sequence[Path] = (), limits: Limits | None = None) -> None:
        self.manifest = read_manifest(directory)
        self._shards = BundleShards(directory, self.manifest, limits)
        self._view = self._shards.view()
        self._queries = queries
        self._mergers: dict[Lane, Merger] = {"diagnosis": Merger(memory_limit="4GB"), "adhoc": Merger(memory_limit="4GB")}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for merger in self._mergers.values():
            merger.close()

    @property
    def now(self) -> datetime:
        return self.manifest.recorded_at

    def load(self) -> None:
        """Read all rows now; the first question does it otherwise."""
        self._shards.load()

    def health(
        self,
        job: str | None = None,
        *,
        diagnosis: str | Sequence[str] | None = None,
        params: Mapping[str, ParamValue] | None = None,
        deadline: float | None = None,
        min_coverage: float | None = None,
        lang: str | None = None,
        max_age: float | None = None,
    ) -> HealthReport:
        """As `Client.health`. There is no kept verdict: `max_age` has no effect."""
        found = self._evaluate(job, diagnosis, params, deadline, min_coverage, lang)
        return HealthReport(http_status(found), health_json(found))

    def health_text(self, job: str | None = None, **options: Any) -> tuple[str, str]:
        """As `Client.health_text`."""
        names = ("diagnosis", "params", "deadline", "min_coverage", "lang")
        found = self._evaluate(job, *(options.get(n) for n in names))
        return found.status.value, health_text(found)

    def query(self, job: str | None, sql: str, params: Mapping[str, Any] | None = None, **options: Any) -> QueryResult:
        """As `Client.query`; without `max_rows` a million rows are given."""
        self._check(job)
        self._shards.load()
        statement = Statement("query", sql, params or {}, options.get("use_global") is not False)
        deadline = options.get("deadline") or DEADLINE_S

        async def run() -> Any:
            return await self._federation().run([statement], self._view, deadline_s=deadline, lane="adhoc")

        result = anyio.run(run)["query"]
        if result.error is not None:
            raise result.error
        coverage = coverage_json(result.coverage)
        there = result.coverage.world_size - len(result.coverage.missing)
        share = there / result.coverage.world_size if result.coverage.world_size else 0.0
        partial = options.get("on_partial") == "fail" and not result.coverage.complete
        if partial or share < (options.get("min_coverage") or 0.0):
            raise ShardFailed(f"{there} of {result.coverage.world_size} ranks are in the bundle.", coverage=coverage)
        most = options.get("max_rows") or MAX_ROWS
        if result.table.num_rows > most:
            raise OverBudget(
                f"The answer has {result.table.num_rows} rows; at most {most} were asked for.",
                hint="Raise max_rows, or add LIMIT or a filter.",
            )
        columns = [{"name": c.name, "type": c.type, "exactness": c.exactness.value} for c in result.columns]
        return QueryResult(columns, json_rows(result.table), coverage, round(result.elapsed_ms, 3))

    def explain(self, job: str | None, sql: str, params: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """As `Client.explain`."""
        self._check(job)

        async def run() -> Any:
            return await self._federation().plan([Statement("query", sql, params or {})], self._view)

        plan, refused = anyio.run(run)
        if refused:
            raise refused["query"]
        return {"plan": explaining.as_dict(plan), "tree": explaining.tree(plan)}

    def jobs(self) -> Sequence[Mapping[str, Any]]:
        """The one job of the bundle."""
        return [self._job().model_dump(mode="json")]

    def job(self, job: str | None = None) -> Mapping[str, Any]:
        self._check(job)
        names = ("rank", "host", "node", "addr", "pid", "last_seen", "last_progress_s")
        ranks = [RankBody(status=r.status.value, **{n: getattr(r, n) for n in names}) for r in self._view.ranks]
        previous = self.manifest.previous_generations
        return JobDetail(**dict(self._job()), ranks=ranks, previous_generations=previous).model_dump(mode="json")

    def nodes(self, job: str | None = None) -> Sequence[Mapping[str, Any]]:
        self._check(job)
        return [self._node(n).model_dump(mode="json") for n in self.manifest.nodes]

    def tables(self, job: str | None = None) -> Sequence[Mapping[str, Any]]:
        self._check(job)
        view = self._view
        tags = [ColumnBody(name=c.name, type=c.type) for c in TAGS]
        found = [
            TableBody(
                table=NODES.full_name,
                columns=[ColumnBody(name=c.name, type=c.type) for c in NODES.columns],
                meaning=NODES.meaning,
                ranks=None,
                complete=True,
            )
        ]
        for name, columns in catalogue_of(view).tables.items():
            known = REGISTRY.get(name)
            ranks = sorted(r for s in view.shards for r in s.ranks if s.tables is None or name in s.tables)
            own = [ColumnBody(name=c.name, type=c.type) for c in columns]
            found.append(
                TableBody(
                    table=name,
                    columns=tags + own,
                    meaning=known.meaning if known else None,
                    ranks=ranks,
                    complete=len(ranks) == view.world_size > 0,
                )
            )
        return [t.model_dump(mode="json") for t in found]

    def _federation(self) -> Federation:
        """One for each question: it belongs to the event loop that asks."""
        lanes: dict[Lane, int] = {"diagnosis": 1, "adhoc": 1}
        return Federation(planner=Planner(), shards=self._shards, mergers=self._mergers, at_once=lanes, budget=BUDGET)

    def _evaluate(
        self,
        job: str | None,
        diagnosis: str | Sequence[str] | None,
        params: Mapping[str, ParamValue] | None,
        deadline: float | None,
        min_coverage: float | None,
        lang: str | None,
    ) -> Evaluation:
        self._check(job)
        service = DiagnosisService(load(self._queries), self._federation())
        ids = [diagnosis] if isinstance(diagnosis, str) else list(diagnosis or ("job_health",))
        self._shards.load()

        async def run() -> Evaluation:
            return await service.evaluate(
                self._view,
                ids,
                params=params or {},
                deadline_s=deadline or DEADLINE_S,
                min_coverage=1.0 if min_coverage is None else min_coverage,
                lang=lang or "en",
            )

        try:
            return anyio.run(run)
        finally:
            service.close()

    def _check(self, job: str | None) -> None:
        if job is not None and job != self.manifest.job:
            raise JobNotFound(f"The bundle is of job {self.manifest.job}, not of {job[:128]}.", hint="Leave JOB out.")
        if not self._view.world_size:
            raise BadRequest("The bundle holds no rank.", hint="Record the job again once its agents have registered.")

    def _job(self) -> JobBody:
        statuses: dict[RankStatus, int] = {}
        for rank in self._view.ranks:
            statuses[rank.status] = statuses.get(rank.status, 0) + 1
        seen = [n.last_seen for n in self.manifest.nodes if n.last_seen]
        return JobBody(
            job=self.manifest.job,
            generation=self.manifest.generation,
            world_size=self.manifest.world_size,
            statuses={status.value: n for status, n in statuses.items()},
            nodes=len(self.manifest.nodes),
            first_seen=self.manifest.first_seen or min(seen, default=self.now),
            last_seen=max(seen, default=self.now),
        )

    def _node(self, node: NodeEntry) -> NodeBody:
        return NodeBody(
            node=node.node,
            host=node.host,
            addr=node.addr,
            kind=node.kind,
            alive=node.alive,
            ranks=[r.rank for r in ranks_of(self.manifest, node.node)],
            engine=node.engine.label if node.engine else None,
            clock_offset_s=node.clock_offset_s,
            first_seen=node.first_seen or node.last_seen or self.now,
            last_seen=node.last_seen or self.now,
        )
