"""Nodes that speak the wire protocol over real sockets, each with rows of its own and, on demand, a way to misbehave."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import anyio
import orjson
import pyarrow as pa
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from muster.engine import arrow_type, engine_name
from muster.federation.shards.local import LocalShard
from muster.model import JobView, RankInfo, RankStatus, ShardInfo, ShardKind
from muster.protocol import ARROW_STREAM, QueryRequest
from muster.tables import STEP_TIMING, TAGS

Misbehave = Callable[[Request, bytes], Any]
TABLE = STEP_TIMING.full_name
STEPS = 50


def rows(ranks: Sequence[int], host: str) -> pa.Table:
    """Steps 1 … 50 of some ranks; every value tells whose it is."""
    columns = [*TAGS, *STEP_TIMING.columns]
    data: dict[str, list[Any]] = {c.name: [] for c in columns}
    for rank in ranks:
        for step in range(1, STEPS + 1):
            values = {
                "_rank": rank,
                "_host": host,
                "_generation": "g",
                "rank": rank,
                "global_step": step,
                "step_duration_sec": 0.02 + rank / 1000 + step / 1e6,
                "tokens": rank * 1000 + step,
                "loss": None if step % 7 == 0 else 1.0 / step,
            }
            for column in columns:
                data[column.name].append(values.get(column.name))
    return pa.table({c.name: pa.array(data[c.name], arrow_type(c.type)) for c in columns})


def stream(table: pa.Table, meta: Mapping[str, str], **options: Any) -> bytes:
    """One Arrow stream with metadata."""
    sink = io.BytesIO()
    schema = table.schema.with_metadata(dict(meta))
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in table.replace_schema_metadata(schema.metadata).to_batches():
            writer.write_batch(batch)
    return sink.getvalue()


class Node:
    """One node on a port of its own. `misbehave` gets the request and the right body, and answers instead."""

    def __init__(self, name: str, ranks: Sequence[int]) -> None:
        self.name = name
        self.ranks = tuple(ranks)
        self.table = rows(ranks, name)
        self.misbehave: Misbehave | None = None
        self.requests = 0
        self._local = LocalShard(name, name, ranks, {TABLE: self.table})
        self._listener = listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.addr = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app = Starlette(routes=[Route("/v1/query", self._query, methods=["POST"])])
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    @property
    def info(self) -> ShardInfo:
        return ShardInfo(
            id=self.name,
            kind=ShardKind.AGENT,
            addr=self.addr,
            host=self.name,
            ranks=self.ranks,
            tables=self._local.info.tables,
            engine=engine_name(),
            profile=self._local.info.profile,
        )

    def stop(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(5)
        self._listener.close()

    async def right_body(self, request: QueryRequest) -> bytes:
        """What a good agent would answer."""
        answers = await self._local.query(request.queries, request.ranks or [], {}, 10.0)
        parts = []
        for answer in answers:
            meta = {
                "id": answer.id,
                "as_of": datetime.now(UTC).isoformat(),
                "elapsed_ms": "1",
                "ranks": orjson.dumps(self.ranks).decode(),
                "oldest_step": "1",
                "rows_lost": "0",
            }
            if answer.error is not None:
                error = {"error": orjson.dumps(answer.error.problem()).decode()}
                parts.append(stream(pa.table({}), meta | error))
            else:
                assert answer.table is not None
                counts = {"rows": str(answer.table.num_rows), "batches": str(len(answer.table.to_batches()))}
                parts.append(stream(answer.table, meta | counts))
        return b"".join(parts)

    async def _query(self, request: Request) -> Response:
        self.requests += 1
        wanted = QueryRequest.model_validate_json(await request.body())
        body = await self.right_body(wanted)
        if self.misbehave is not None:
            answer = self.misbehave(request, body)
            if isinstance(answer, float):
                await anyio.sleep(answer)
            else:
                assert isinstance(answer, Response)
                return answer
        return Response(body, media_type=ARROW_STREAM)


class Nodes:
    """Three nodes of two ranks each, and the view of their job."""

    def __init__(self) -> None:
        self.all = [Node(f"n{i}", (2 * i, 2 * i + 1)) for i in range(3)]

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for node in self.all:
            node.stop()

    def view(self, world_size: int = 6) -> JobView:
        by_rank = {r: n for n in self.all for r in n.ranks}
        ranks = [
            RankInfo(r, "g", by_rank[r].name, by_rank[r].name, status=RankStatus.RUNNING)
            if r in by_rank
            else RankInfo(r, "g")
            for r in range(world_size)
        ]
        return JobView("j", "g", world_size, tuple(ranks), tuple(n.info for n in self.all), datetime.now(UTC))

    def whole(self) -> pa.Table:
        """All rows of all ranks in one table."""
        return pa.concat_tables([n.table for n in self.all])
