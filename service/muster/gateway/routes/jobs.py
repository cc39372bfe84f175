"""Jobs, their ranks, nodes and tables; registration of agents."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response

from muster.errors import NodeNotFound, ParameterError
from muster.federation.catalogue import catalogue_of
from muster.gateway import requests
from muster.gateway.routes.context import JobPath, may_read, may_read_any, may_register, parts_of
from muster.gateway.shapes import PROBLEMS, ColumnBody, JobBody, JobDetail, NodeBody, RankBody, TableBody
from muster.protocol import Registration, RegistrationAnswer
from muster.registry.registry import JobSummary
from muster.tables import NODES, REGISTRY, TAGS

router = APIRouter(tags=["jobs"], responses=PROBLEMS)
NODE_ID = r"^[A-Za-z0-9._-]{1,253}$"
NodePath = Annotated[str, Path(description="Name of the node.", pattern=NODE_ID)]


@router.get("/jobs", summary="All jobs that the token may see, the one last heard of first.")
async def get_jobs(request: Request, _: Annotated[None, Depends(may_read_any)]) -> list[JobBody]:
    requests.only(request, ())
    parts = parts_of(request)
    found = parts.registry.jobs(parts.clock())
    visible = parts.auth.visible(request, [s.job for s in found])
    return [_job(s) for s in found if s.job in visible]


@router.get("/jobs/{job}", dependencies=[Depends(may_read)], summary="One job: its generation and every expected rank.")
async def get_job(request: Request, job: JobPath) -> JobDetail:
    requests.only(request, ())
    parts = parts_of(request)
    now = parts.clock()
    view = parts.registry.view(job, now)
    summary = next(s for s in parts.registry.jobs(now) if s.job == job)
    ranks = [
        RankBody(
            rank=r.rank,
            status=r.status.value,
            host=r.host,
            node=r.node,
            addr=r.addr,
            pid=r.pid,
            last_seen=r.last_seen,
            last_progress_s=r.last_progress_s,
        )
        for r in view.ranks
    ]
    return JobDetail(**dict(_job(summary)), ranks=ranks, previous_generations=list(view.previous_generations))


@router.get("/jobs/{job}/nodes", dependencies=[Depends(may_read)], summary="The nodes that registered for a job.")
async def get_nodes(request: Request, job: JobPath) -> list[NodeBody]:
    requests.only(request, ())
    parts = parts_of(request)
    view = parts.registry.view(job, parts.clock())
    shards = {s.id: s for s in view.shards}
    found = []
    for entry in parts.registry.nodes(job):
        shard = shards.get(entry.node)
        said = entry.registration
        found.append(
            NodeBody(
                node=entry.node,
                host=said.host,
                addr=said.addr,
                kind=said.kind,
                alive=(parts.clock() - entry.seen_at).total_seconds() <= parts.settings.expires_s,
                ranks=list(shard.ranks) if shard else [],
                engine=said.engine.label if said.engine else None,
                clock_offset_s=entry.clock_offset_s,
                first_seen=entry.first_seen,
                last_seen=entry.seen_at,
            )
        )
    return found


@router.get("/jobs/{job}/tables", dependencies=[Depends(may_read)], summary="The tables of a job and who has them.")
async def get_tables(request: Request, job: JobPath) -> list[TableBody]:
    requests.only(request, ())
    parts = parts_of(request)
    view = parts.registry.view(job, parts.clock())
    tags = [ColumnBody(name=c.name, type=c.type) for c in TAGS]
    found = []
    for name, columns in catalogue_of(view).tables.items():
        known = REGISTRY.get(name)
        ranks = sorted(r for s in view.shards for r in s.ranks if s.tables is None or name in s.tables)
        found.append(
            TableBody(
                table=name,
                columns=[*tags, *(ColumnBody(name=c.name, type=c.type) for c in columns)],
                meaning=known.meaning if known else None,
                ranks=ranks,
                complete=len(ranks) == view.world_size > 0,
            )
        )
    nodes = [ColumnBody(name=c.name, type=c.type) for c in NODES.columns]
    roster = TableBody(table=NODES.full_name, columns=nodes, meaning=NODES.meaning, ranks=None, complete=True)
    return [roster, *found]


@router.put(
    "/jobs/{job}/nodes/{node}", dependencies=[Depends(may_register)], summary="Register an agent, or send its heartbeat."
)
async def put_node(request: Request, job: JobPath, node: NodePath, body: Registration) -> RegistrationAnswer:
    requests.only(request, ())
    parts = parts_of(request)
    if len({(r.rank, r.generation) for r in body.ranks}) != len(body.ranks):
        raise ParameterError("ranks names a rank of a generation twice.", parameter="ranks")
    parts.metrics.registrations.inc()
    return await anyio.to_thread.run_sync(parts.registry.register, job, node, body, parts.clock())


@router.delete(
    "/jobs/{job}/nodes/{node}",
    dependencies=[Depends(may_register)],
    status_code=204,
    response_class=Response,
    summary="A node leaves; its ranks stay in the roster.",
)
async def delete_node(request: Request, job: JobPath, node: str) -> Response:
    requests.only(request, ())
    if len(node) > 253:
        raise NodeNotFound("That is not the name of a node.")
    await anyio.to_thread.run_sync(parts_of(request).registry.deregister, job, node)
    return Response(status_code=204)


def _job(summary: JobSummary) -> JobBody:
    return JobBody(
        job=summary.job,
        generation=summary.generation,
        world_size=summary.world_size,
        statuses={status.value: n for status, n in summary.statuses.items()},
        nodes=summary.nodes,
        first_seen=summary.first_seen,
        last_seen=summary.last_seen,
    )
