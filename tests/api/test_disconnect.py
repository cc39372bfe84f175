"""A client that goes away ends the work for it, down to the shards."""

from __future__ import annotations

import time
from typing import Any

import anyio
import httpx
import pytest
from starlette.types import Message, Scope

from api.conftest import World

QUERY = b'{"sql": "SELECT count(*) FROM python.torch_step_timing"}'


class Endless:
    """A shard that does not answer before it is cancelled."""

    def __init__(self, started: anyio.Event, ended: list[str]) -> None:
        self._started = started
        self._ended = ended

    async def query(self, *_: Any, **__: Any) -> Any:
        self._started.set()
        try:
            await anyio.sleep_forever()
        finally:
            self._ended.append("cancelled")


def scope(method: str, path: str) -> Scope:
    headers = [(b"host", b"127.0.0.1:8700"), (b"content-type", b"application/json")]
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8700),
    }  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "body"), [("POST", "/jobs/j/query", QUERY), ("GET", "/jobs/j/health", b"")], ids=["query", "health"]
)
async def test_a_client_that_goes_away_cancels_the_work_of_the_shards(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: bytes
) -> None:
    started, ended = anyio.Event(), []
    monkeypatch.setattr(world, "_shards", {f"n{i}": Endless(started, ended) for i in (0, 1)})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://127.0.0.1") as client:
        for i in (0, 1):
            registered = await client.put(f"/jobs/j/nodes/n{i}", json=with_tables(world.registration(i)))
            assert registered.status_code == 200, registered.text
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await started.wait()
        return {"type": "http.disconnect"}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    began = time.monotonic()
    with anyio.fail_after(9):  # the deadline of a request is 10 s
        await world.app(scope(method, path), receive, send)
    assert ended
    assert set(ended) == {"cancelled"}
    assert [m["status"] for m in sent if m["type"] == "http.response.start"] == [499]
    assert time.monotonic() - began < 9


def with_tables(body: dict[str, Any]) -> dict[str, Any]:
    columns = [{"name": "_rank", "type": "BIGINT"}, {"name": "global_step", "type": "BIGINT"}]
    return body | {"tables": [{"schema": "python", "name": "torch_step_timing", "columns": columns}]}
