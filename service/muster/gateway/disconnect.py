"""Stop working for a client that has gone away."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import anyio
from fastapi import Request

from muster.errors import MusterError

T = TypeVar("T")


class ClientGone(MusterError):
    """Nobody reads the answer any more."""

    status, code, title = 499, "client_gone", "The client has gone"


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled, down to the probes, when the client disconnects. Raises what it raises."""
    results: list[T] = []
    try:
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(watch)
            results.append(await work)
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        raise _only(failed) from None
    if not results:
        raise ClientGone("The client has gone away.")
    return results[0]


def _only(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error inside nested groups; the group itself where there are several."""
    error: BaseException = failed
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
