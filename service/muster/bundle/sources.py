"""Whom a live job is recorded from: its gateway, or its agents themselves. Both give the roster, and rows of ranks."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import anyio
import httpx
import orjson
import pyarrow as pa
from httpx_aiohttp import AiohttpTransport
from pydantic import ValidationError

from muster.bundle.manifest import NodeEntry, RankEntry
from muster.client import error_of, unreachable
from muster.errors import DeadlineExceeded, MusterError, NotReady, ShardFailed, ShardUnreachable
from muster.model import ColumnType
from muster.protocol import ARROW_STREAM, Engine
from muster.tables import GATEWAY_TABLES
from muster.wording import first_line

MAX_ANSWER_BYTES = 256 << 20
Rows = pa.Table | MusterError
Tables = Mapping[str, tuple[ColumnType, ...]]


@dataclass(slots=True)
class Roster:
    """A job as it is found. `tables`: what each node offers; `first_seen`: of the job."""

    job: str
    generation: str | None
    previous_generations: list[str]
    ranks: list[RankEntry]
    nodes: list[NodeEntry]
    tables: dict[str, Tables]
    taken_at: datetime
    first_seen: datetime | None = None
    problems: list[str] = field(default_factory=list)


class JobSource(Protocol):
    """Somewhere a job can be recorded from."""

    kind: str

    async def roster(self) -> Roster:
        """The job as it is now. Raises MusterError where there is none."""
        ...

    async def everywhere(self, table: str, until: float) -> tuple[dict[str, pa.Table], dict[int, MusterError]]:
        """All rows of a table, of all ranks at once: by node, and the error of each rank that gave none."""
        ...

    async def rows(self, node: str, rank: int, statements: Mapping[str, str], until: float) -> dict[str, Rows]:
        """The answer of a node to statements over the rows of one rank, by their ids; an error is an answer too."""
        ...


def http_client(token: str | None = None, timeout: float = 60.0) -> httpx.AsyncClient:
    """A client for gateway and agents: no redirects, nothing from the environment."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    limit = httpx.Timeout(timeout, connect=5.0)
    return httpx.AsyncClient(transport=AiohttpTransport(), headers=headers, timeout=limit, trust_env=False)


class GatewaySource:
    """Records through a gateway; needs a token with the scopes read and query where it has tokens."""

    kind = "gateway"

    def __init__(self, job: str, url: str, client: httpx.AsyncClient) -> None:
        self._job = job
        self._url = url.rstrip("/")
        self._client = client
        self._owner: dict[int, str] = {}

    async def roster(self) -> Roster:
        job = await self._get(f"/jobs/{self._job}")
        nodes = await self._get(f"/jobs/{self._job}/nodes")
        tables = await self._get(f"/jobs/{self._job}/tables")
        known = {r["rank"]: r for r in (await self._query("SELECT * FROM cluster.nodes"))[0].to_pylist()}
        try:
            return self._roster(job, nodes, tables, known)
        except (KeyError, TypeError, ValidationError, ValueError) as error:
            raise NotReady(f"{self._url} gave a roster that cannot be read: {first_line(error)}", hint=_GATEWAY) from None

    def _roster(self, job: Any, nodes: Any, tables: Any, known: Mapping[int, Any]) -> Roster:
        entries = [
            NodeEntry(
                **{k: n[k] for k in ("node", "host", "addr", "kind", "alive", "clock_offset_s", "first_seen", "last_seen")},
                node_rank=next((known[r]["group_rank"] for r in n["ranks"] if r in known), None),
                engine=_engine(n.get("engine")),
            )
            for n in nodes
        ]
        ranks = [
            RankEntry(
                rank=r["rank"], status=r["status"], host=r["host"], node=r["node"], addr=r["addr"], pid=r["pid"],
                last_seen=r["last_seen"], last_progress_s=r["last_progress_s"],
                node_rank=known[r["rank"]]["group_rank"],
                **{k: known[r["rank"]][k] for k in
                   ("generation", "local_rank", "role", "role_name", "role_rank", "role_world_size")},
            )
            for r in job["ranks"]
        ]  # fmt: skip
        serving = {r: n["node"] for n in nodes for r in n["ranks"]}
        self._owner = serving
        offered: dict[str, dict[str, tuple[ColumnType, ...]]] = {n["node"]: {} for n in nodes}
        for table in tables:
            if table["table"] in GATEWAY_TABLES:
                continue
            columns = tuple(ColumnType(c["name"], c["type"]) for c in table["columns"])
            for node in {serving[r] for r in table["ranks"] or () if r in serving}:
                offered[node][table["table"]] = columns
        stamps = [row["timestamp"] for row in known.values()]
        taken = datetime.fromtimestamp(max(stamps) / 1e6, UTC) if stamps else datetime.now(UTC)
        first = datetime.fromisoformat(job["first_seen"])
        return Roster(
            job["job"], job["generation"], list(job["previous_generations"]), ranks, entries, dict(offered), taken, first
        )

    async def everywhere(self, table: str, until: float) -> tuple[dict[str, pa.Table], dict[int, MusterError]]:
        rows, coverage = await self._query(f"SELECT * FROM {table}", until)
        found: dict[str, pa.Table] = {}
        ranks = rows.column("_rank").to_pylist()
        places: dict[str, list[int]] = {}
        for i, rank in enumerate(ranks):
            if rank in self._owner:
                places.setdefault(self._owner[rank], []).append(i)
        for node, mine in places.items():
            found[node] = rows.take(pa.array(mine, pa.int64()))
        return found, {m["rank"]: _state_error(m["state"], m["reason"]) for m in _gone(coverage)}

    async def rows(self, node: str, rank: int, statements: Mapping[str, str], until: float) -> dict[str, Rows]:
        found: dict[str, Rows] = {}
        for id, sql in statements.items():
            try:
                rows, coverage = await self._query(sql, until)
                gone = next((m for m in _gone(coverage) if m["rank"] == rank), None)
                found[id] = rows if gone is None else _state_error(gone["state"], gone["reason"])
            except MusterError as error:
                found[id] = error
        return found

    async def _get(self, path: str) -> Any:
        answer = await self._send("GET", path)
        return answer.json()

    async def _query(self, sql: str, until: float | None = None) -> tuple[pa.Table, dict[str, Any]]:
        body: dict[str, Any] = {"sql": sql, "max_rows": 1_000_000}
        if until is not None:
            body["deadline"] = min(60.0, max(0.1, until - anyio.current_time()))
        answer = await self._send("POST", f"/jobs/{self._job}/query", json=body, headers={"Accept": ARROW_STREAM})
        try:
            table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
        except pa.ArrowException as error:
            raise ShardFailed(f"{self._url} gave an answer that is no Arrow: {first_line(error)}") from None
        coverage = orjson.loads((table.schema.metadata or {}).get(b"coverage", b"{}"))
        return table.replace_schema_metadata(None), coverage

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            async with self._client.stream(method, self._url + path, **options) as answer:
                body = bytearray()
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise ShardFailed(f"{self._url} sent more than {MAX_ANSWER_BYTES:,} bytes.")
                whole = httpx.Response(
                    answer.status_code, headers={"content-type": answer.headers.get("content-type", "")},
                    content=bytes(body), request=answer.request,
                )  # fmt: skip
        except httpx.HTTPError as error:
            raise unreachable(self._url, error) from None
        if whole.status_code != 200:
            raise error_of(whole)
        return whole


def _gone(coverage: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Ranks that have rows which did not come."""
    return [m for m in coverage.get("missing", []) if m["state"] in ("failed", "timed_out", "unreachable")]


def _state_error(state: str, reason: str) -> MusterError:
    kinds: Mapping[str, type[MusterError]] = {"timed_out": DeadlineExceeded, "unreachable": ShardUnreachable}
    return kinds.get(state, ShardFailed)(reason)


def _engine(text: str | None) -> Engine | None:
    name, _, version = (text or "").partition(" ")
    return Engine(name=name, version=version) if version else None


_GATEWAY = "Is it a gateway of this version? See `muster version`."
