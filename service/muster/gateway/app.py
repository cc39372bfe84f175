"""The FastAPI app, put together by hand: what a part needs is given to it here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
import httpx
import structlog
from fastapi import FastAPI
from httpx_aiohttp import AiohttpTransport

from muster import __version__
from muster.diagnosis.catalogue import DiagnosisCatalogue, load
from muster.diagnosis.service import DiagnosisService
from muster.federation.merge import Merger
from muster.federation.service import Federation
from muster.federation.shards.agent import AgentShard
from muster.federation.shards.base import Shard, ShardFactory
from muster.gateway import errors
from muster.gateway.auth import Auth
from muster.gateway.health import Evaluator, HealthDesk
from muster.gateway.history import VerdictHistory
from muster.gateway.metrics import Metrics
from muster.gateway.middleware import Edge
from muster.gateway.openapi import DocumentedApp
from muster.gateway.routes import health, history, jobs, meta, queries, sql
from muster.gateway.settings import GatewaySettings
from muster.model import ShardInfo
from muster.registry.addresses import AllowList
from muster.registry.registry import Limits, Registry
from muster.registry.store import Store
from muster.sql.planner import Planner


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes work with; they find it as `request.app.state.parts`."""

    settings: GatewaySettings
    auth: Auth
    store: Store
    registry: Registry
    catalogue: DiagnosisCatalogue
    federation: Federation
    desk: HealthDesk
    evaluator: Evaluator
    metrics: Metrics
    clock: Callable[[], datetime]


class HttpShards:
    """Makes shards that are asked over HTTP, all through one client."""

    def __init__(self, client: httpx.AsyncClient, token: str | None) -> None:
        self._client = client
        self._token = token

    def __call__(self, info: ShardInfo) -> Shard:
        return AgentShard(info, self._client, self._token)


def probe_client() -> httpx.AsyncClient:
    """The client for all probes: kept connections, no redirects, nothing from the environment. Its transport is aiohttp's,
    since httpx's own pool looks at every connection twice per request. Make it in the loop that uses it."""
    return httpx.AsyncClient(
        transport=AiohttpTransport(limits=httpx.Limits(max_connections=2048, max_keepalive_connections=2048)),
        follow_redirects=False,
        trust_env=False,
        timeout=httpx.Timeout(60.0, connect=3.0),
    )


def create_app(
    settings: GatewaySettings, *, shards: ShardFactory | None = None, clock: Callable[[], datetime] = utc_now
) -> FastAPI:
    """The gateway. `shards` and `clock` are for tests. Raises ConfigError for diagnoses that do not load."""
    client = None if shards is not None else probe_client()
    token = settings.probe_token.get_secret_value() if settings.probe_token else None
    parts = _parts(settings, shards or HttpShards(client or probe_client(), token), clock)
    log = structlog.get_logger("muster.gateway")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if parts.store.problem:
            log.warning("state file", problem=parts.store.problem)
        async with anyio.create_task_group() as group:
            if settings.evaluate_s:
                group.start_soon(parts.evaluator.run)
                group.start_soon(parts.desk.prepare)
            yield
            group.cancel_scope.cancel()
        if client is not None:
            await client.aclose()
        parts.store.close()

    app = DocumentedApp(
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False, "auto_configure": False},
        title="Muster gateway",
        version=__version__,
        summary="Is this distributed training job healthy, and if not, which rank, which host, and why?",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    app.state.parts = parts
    errors.install(app)
    for module in (health, history, sql, jobs, queries, meta):
        app.include_router(module.router)
    app.add_middleware(Edge, metrics=parts.metrics, max_body_bytes=settings.max_body_bytes, hosts=settings.addressed_as())
    return app


def _parts(settings: GatewaySettings, shards: ShardFactory, clock: Callable[[], datetime]) -> Parts:
    store = Store(settings.state)
    registry = Registry(
        store,
        heartbeat_s=settings.heartbeat_s,
        expires_s=settings.expires_s,
        forget_s=settings.forget_s,
        addresses=AllowList(settings.probe_addresses),
        limits=Limits(settings.max_jobs, settings.max_nodes_per_job, settings.max_ranks_per_job),
        now=clock(),
    )
    federation = Federation(
        planner=Planner(),
        shards=shards,
        mergers={
            "diagnosis": Merger(memory_limit=settings.memory_limit, threads=settings.threads),
            "adhoc": Merger(memory_limit=settings.adhoc_memory_limit, threads=settings.threads),
        },
        at_once={"diagnosis": settings.diagnoses_at_once, "adhoc": settings.queries_at_once},
    )
    catalogue = load(settings.queries)
    metrics = Metrics()
    desk = HealthDesk(registry, DiagnosisService(catalogue, federation), VerdictHistory(store), metrics, clock)
    evaluator = Evaluator(
        desk,
        registry,
        clock,
        every_s=settings.evaluate_s,
        deadline_s=settings.deadline_s,
        min_coverage=settings.min_coverage,
    )
    return Parts(settings, Auth(settings.tokens), store, registry, catalogue, federation, desk, evaluator, metrics, clock)
