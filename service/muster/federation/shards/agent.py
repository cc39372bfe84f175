"""An agent, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import aiohttp
import anyio
import anyio.to_thread
import httpx
import pyarrow as pa

from muster.errors import DeadlineExceeded, ShardAnswerInvalid, ShardFailed, ShardUnreachable
from muster.federation.shards.base import SubAnswer
from muster.federation.wire import decode
from muster.model import ShardInfo
from muster.protocol import ARROW_STREAM, MAX_DEADLINE_MS, QueryRequest, RankRef, SubQuery

ANSWER_BYTES = 256 << 20
_DECODE_INLINE = 256 << 10
_RETRY_STATUS = frozenset({502, 503})


class AgentShard:
    """One agent. All agents share one client, which keeps their connections."""

    def __init__(self, info: ShardInfo, client: httpx.AsyncClient, token: str | None = None) -> None:
        self._info = info
        self._client = client
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    @property
    def info(self) -> ShardInfo:
        return self._info

    async def query(
        self,
        subqueries: Sequence[SubQuery],
        ranks: Sequence[RankRef],
        schemas: Mapping[str, pa.Schema],
        deadline_s: float,
    ) -> Sequence[SubAnswer]:
        deadline_ms = min(MAX_DEADLINE_MS, max(1, int(deadline_s * 1000)))
        request = QueryRequest(queries=list(subqueries), ranks=list(ranks), deadline_ms=deadline_ms)
        content = request.model_dump_json().encode()
        try:
            with anyio.fail_after(deadline_s):
                body = await self._send(content, limit=min(ANSWER_BYTES, sum(q.max_bytes for q in subqueries) + (1 << 20)))
        except TimeoutError:
            raise DeadlineExceeded(f"{self._info.addr} did not answer within {deadline_s:.1f} s.") from None
        if len(body) <= _DECODE_INLINE:
            return decode(body, subqueries, schemas)
        return await anyio.to_thread.run_sync(decode, body, subqueries, schemas)

    async def _send(self, content: bytes, limit: int) -> bytes:
        """One request, and one more after a refused connection or a 502 or 503."""
        try:
            return await self._once(content, limit)
        except _Again:
            await anyio.sleep(0.05)
        try:
            return await self._once(content, limit)
        except _Again as again:
            raise again.error from None

    async def _once(self, content: bytes, limit: int) -> bytes:
        url = f"{self._info.addr}/v1/query"
        try:
            async with self._client.stream("POST", url, content=content, headers=self._headers) as answer:
                if answer.status_code != 200:
                    text = (await _read(answer, 64 << 10)).decode("utf-8", "replace")
                    error = ShardFailed(f"{self._info.addr} answered HTTP {answer.status_code}: {text[:300]}")
                    if answer.status_code in _RETRY_STATUS:
                        raise _Again(error)
                    raise error
                kind = answer.headers.get("content-type", "")
                if kind.partition(";")[0].strip() != ARROW_STREAM:
                    raise ShardAnswerInvalid(f"{self._info.addr} answered with {kind or 'no content type'}, not Arrow.")
                return await _read(answer, limit)
        except httpx.HTTPError as error:
            raise self._failure(error) from None

    def _failure(self, error: httpx.HTTPError) -> Exception:
        """What a failed exchange is. The transport calls every lost connection a ConnectTimeout; aiohttp's own error, its
        cause, tells a refused connection from one that was dropped (worth one more try, it may have been kept too long)
        and from one that is just slow."""
        cause = error.__cause__
        if isinstance(error, httpx.ConnectError) or isinstance(cause, aiohttp.ClientConnectorError):
            return _Again(ShardUnreachable(f"{self._info.addr} cannot be reached: {error}"))
        if isinstance(cause, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
            return _Again(ShardFailed(f"{self._info.addr} dropped the connection: {cause}"))
        if isinstance(error, httpx.TimeoutException):
            return DeadlineExceeded(f"{self._info.addr} did not answer in time: {type(error).__name__}.")
        return ShardFailed(f"{self._info.addr} broke off: {type(error).__name__}: {error}")


class _Again(Exception):
    """Worth one more try; `error` is what it is otherwise."""

    def __init__(self, error: ShardFailed) -> None:
        super().__init__(str(error))
        self.error = error


async def _read(answer: httpx.Response, limit: int) -> bytes:
    length = answer.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise ShardAnswerInvalid(f"{length} bytes were announced, at most {limit} are read.")
    chunks: list[bytes] = []
    size = 0
    async for chunk in answer.aiter_raw():
        size += len(chunk)
        if size > limit:
            raise ShardAnswerInvalid(f"More than {limit} bytes came.")
        chunks.append(chunk)
    return b"".join(chunks)
