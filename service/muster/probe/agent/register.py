"""Registration with the gateway and heartbeats: never in the way of serving, never giving up."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime

import anyio
import anyio.to_thread
import httpx
import structlog

from muster.protocol import NodeInfo, Registration, RegistrationAnswer

_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 15.0
_TIMEOUT_S = 5.0
_MAX_HEARTBEAT_S = 300.0


class Heartbeat:
    """Keeps one node registered. `changed.set()` makes the next heartbeat come at once."""

    def __init__(
        self,
        gateway: str,
        token: str | None,
        addr: str,
        describe: Callable[[], NodeInfo],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`failed` is called after a failure that was not the gateway's or the network's."""
        self._url = gateway
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._addr = addr
        self._describe = describe
        self._changed = anyio.Event()
        self._log = structlog.get_logger("muster.agent.register")
        self._failed = failed
        self.registered = False

    def changed(self) -> None:
        """Something that the gateway should know has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Register for ever: at the gateway's own pace while it answers, with growing pauses while it does not. Any other
        failure is logged, counted (`failed`) and treated alike."""
        failures = 0
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, headers=self._headers) as client:
            while True:
                self._changed = anyio.Event()
                try:
                    pause = await self._once(client)
                    failures = 0
                    if not self.registered:
                        self._log.info("registered", gateway=self._url)
                    self.registered = True
                except Exception as error:
                    failures += 1
                    self.registered = False
                    pause = backoff_s(failures)
                    expected = isinstance(error, httpx.HTTPError | httpx.InvalidURL | ValueError)
                    if not expected:
                        self._failed()
                    if failures in (1, 10) or failures % 100 == 0:
                        self._log.warning(
                            "not registered",
                            gateway=self._url, error=_say(error), failures=failures, exc_info=not expected,
                        )  # fmt: skip
                with anyio.move_on_after(pause):
                    if failures:
                        await anyio.sleep(pause)
                    else:
                        await self._changed.wait()

    async def _once(self, client: httpx.AsyncClient) -> float:
        info = await anyio.to_thread.run_sync(self._describe)
        body = registration(info, self._addr)
        url = f"{self._url}/jobs/{info.job}/nodes/{info.node}"
        answer = await client.put(
            url, content=body.model_dump_json(by_alias=True), headers={"Content-Type": "application/json"}
        )
        answer.raise_for_status()
        told = RegistrationAnswer.model_validate_json(answer.content)
        return min(max(0.2, told.heartbeat_s), _MAX_HEARTBEAT_S)


def registration(info: NodeInfo, addr: str) -> Registration:
    """What a node says of itself to the gateway."""
    return Registration(
        addr=addr,
        kind="agent",
        host=info.host,
        world_size=info.world_size,
        node_rank=next((r.node_rank for r in info.ranks if r.node_rank is not None), None),
        now=datetime.now(UTC),
        engine=info.engine,
        ranks=info.ranks,
        tables=info.tables,
    )


def backoff_s(failures: int) -> float:
    """Seconds to wait after so many failures in a row: doubling, with jitter, so that agents do not come all at once."""
    whole = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(failures - 1, 10))
    return float(whole * (0.5 + random.random() / 2))  # noqa: S311 - spread, not secrecy


def _say(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}: {error.response.text[:300]}"
    return f"{type(error).__name__}: {error}"
