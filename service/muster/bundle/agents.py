"""Record a job from its agents themselves, without a gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import anyio
import httpx
import pyarrow as pa
from pydantic import ValidationError

from muster.bundle.manifest import ColumnEntry
from muster.bundle.sources import MAX_ANSWER_BYTES, Roster, Rows
from muster.bundle.view import node_entries, rank_entries
from muster.engine import arrow_schema, open_engine
from muster.errors import BadRequest, DeadlineExceeded, JobNotFound, MusterError, ShardFailed, ShardUnreachable
from muster.federation.shards.agent import AgentShard
from muster.model import ColumnType, JobView
from muster.probe.agent.register import registration
from muster.protocol import NodeInfo, RankRef, SubQuery
from muster.registry import roster
from muster.wording import first_line


class AgentSource:
    """Records from the agents of a job, without a gateway."""

    kind = "agents"

    def __init__(self, job: str, urls: Sequence[str], client: httpx.AsyncClient, token: str | None = None) -> None:
        self._job = job
        self._urls = [u.rstrip("/") for u in urls]
        self._client = client
        self._token = token
        self._shards: dict[str, AgentShard] = {}
        self._schemas: dict[str, dict[str, pa.Schema]] = {}
        self._generations: dict[int, str] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}

    async def roster(self) -> Roster:
        entry = roster.JobEntry(self._job, datetime.now(UTC))
        problems: list[str] = []
        infos: dict[str, NodeInfo] = {}

        async def one(url: str) -> None:
            try:
                info = await self._node(url)
            except MusterError as error:
                problems.append(error.detail)
                return
            infos[info.node] = info
            roster.merge(entry, info.node, registration(info, url), datetime.now(UTC))

        async with anyio.create_task_group() as group:
            for url in self._urls:
                group.start_soon(one, url)
        if not infos:
            raise ShardUnreachable(f"No agent of job {self._job} answers: {'; '.join(problems)}", hint=_AGENTS)
        view = roster.view(entry, datetime.now(UTC), expires_s=60.0)
        return self._found(view, infos, problems)

    def _found(self, view: JobView, infos: Mapping[str, NodeInfo], problems: list[str]) -> Roster:
        engine = open_engine(threads=1)
        try:
            for shard in view.shards:
                for columns in (shard.tables or {}).values():
                    _check_types(columns, shard.addr)
                self._shards[shard.id] = AgentShard(shard, self._client, self._token)
                self._ranks[shard.id] = shard.ranks
                self._schemas[shard.id] = {
                    name: arrow_schema(engine, {c.name: c.type for c in columns})
                    for name, columns in (shard.tables or {}).items()
                }
        finally:
            engine.close()
        self._generations = {r.rank: r.generation or "" for r in view.ranks}
        engines = {n: i.engine for n, i in infos.items()}
        nodes = [n.model_copy(update={"engine": engines.get(n.node)}) for n in node_entries(view)]
        return Roster(
            view.job, view.generation, list(view.previous_generations), rank_entries(view), nodes,
            {s.id: dict(s.tables or {}) for s in view.shards}, view.taken_at, problems=problems,
        )  # fmt: skip

    async def everywhere(self, table: str, until: float) -> tuple[dict[str, pa.Table], dict[int, MusterError]]:
        found: dict[str, pa.Table] = {}
        errors: dict[int, MusterError] = {}

        async def one(node: str) -> None:
            answer = (await self._ask(node, self._ranks[node], {table: f"SELECT * FROM {table}"}, until))[table]
            if isinstance(answer, MusterError):
                errors.update(dict.fromkeys(self._ranks[node], answer))
            else:
                found[node] = answer

        async with anyio.create_task_group() as group:
            for node, schemas in self._schemas.items():
                if table in schemas:
                    group.start_soon(one, node)
        return found, errors

    async def rows(self, node: str, rank: int, statements: Mapping[str, str], until: float) -> dict[str, Rows]:
        return await self._ask(node, (rank,), statements, until)

    async def _ask(self, node: str, ranks: Sequence[int], statements: Mapping[str, str], until: float) -> dict[str, Rows]:
        """One request; the id of a statement is the table whose columns it gives."""
        left = max(0.1, min(60.0, until - anyio.current_time()))
        queries = [
            SubQuery(id=str(i), sql=sql, deadline_ms=int(left * 1000), max_bytes=MAX_ANSWER_BYTES // 4)
            for i, sql in enumerate(statements.values())
        ]
        schemas = {str(i): self._schemas[node][table] for i, table in enumerate(statements)}
        refs = [RankRef(rank=r, generation=self._generations[r]) for r in ranks]
        try:
            answers = await self._shards[node].query(queries, refs, schemas, left)
        except MusterError as error:
            return dict.fromkeys(statements, error)
        found: dict[str, Rows] = {}
        for table, answer in zip(statements, answers, strict=True):
            rows = answer.table if answer.table is not None else answer.error
            found[table] = rows if rows is not None else ShardFailed("The agent gave neither rows nor an error.")
        return found

    async def _node(self, url: str) -> NodeInfo:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            answer = await self._client.get(f"{url}/v1/node", headers=headers)
        except httpx.TimeoutException:
            raise DeadlineExceeded(f"{url} did not answer in time.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ShardUnreachable(f"{url} cannot be reached: {str(error) or type(error).__name__}", hint=_AGENTS) from None
        if answer.status_code != 200 or len(answer.content) > MAX_ANSWER_BYTES:
            raise ShardFailed(f"{url} answered HTTP {answer.status_code}.", hint=_AGENTS)
        try:
            info = NodeInfo.model_validate_json(answer.content)
        except ValidationError as error:
            raise ShardFailed(f"{url} is no agent of Muster: {first_line(error)}", hint=_AGENTS) from None
        if info.job != self._job:
            raise JobNotFound(f"{url} serves job {info.job}, not {self._job}.", hint=_AGENTS)
        return info


def _check_types(columns: Sequence[ColumnType], addr: str) -> None:
    try:
        for column in columns:
            ColumnEntry(name=column.name, type=column.type)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadRequest(f"{addr} offers a column that cannot be recorded: {first['msg']}") from None


_AGENTS = "Name each agent by --agent URL; its address is in <dir>/<job>/agent.json on its node."
