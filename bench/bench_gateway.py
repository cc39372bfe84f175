"""What one `GET /jobs/x/health` costs the gateway, beside fetching and merging the same bytes by hand.

Agents are simulated over real HTTP in another process, whose cost is not counted. By hand is the lower bound: the same
requests with aiohttp, the same answers decoded with pyarrow, concatenated and counted in one DuckDB query.

    python bench/bench_gateway.py [AGENTS=128] [RANKS=8] [ROUNDS=15]
"""

from __future__ import annotations

import asyncio
import io
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import duckdb
import httpx
import orjson
import pyarrow as pa

from muster.gateway.app import create_app
from muster.gateway.settings import GatewaySettings
from simulated_agents import registration

STEPS = 300


async def measured(work: Callable[[], Awaitable[Any]], rounds: int) -> tuple[float, float]:
    """Median CPU and wall milliseconds of this process per round."""
    cpu, wall = [], []
    for _ in range(rounds):
        c, w = time.process_time(), time.perf_counter()
        await work()
        cpu.append((time.process_time() - c) * 1000)
        wall.append((time.perf_counter() - w) * 1000)
    return statistics.median(cpu), statistics.median(wall)


async def by_hand(url: str, waves: list[dict[str, str]]) -> Callable[[], Awaitable[int]]:
    """A function that sends the recorded requests wave by wave and merges the answers; gives the bytes that came."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    connection = duckdb.connect()

    async def fetch(path: str, body: str) -> bytes:
        async with session.post(f"{url}/{path}/v1/query", data=body.encode()) as answer:
            return await answer.read()

    async def once() -> int:
        streams: dict[str, list[pa.Table]] = {}
        moved = 0
        for wave in waves:
            for body in await asyncio.gather(*(fetch(path, text) for path, text in wave.items())):
                moved += len(body)
                source = io.BytesIO(body)
                while source.tell() < len(body):
                    table = pa.ipc.open_stream(source).read_all()
                    streams.setdefault(table.schema.metadata[b"id"].decode(), []).append(
                        table.replace_schema_metadata(None)
                    )
        for id, tables in streams.items():
            connection.register(id, pa.concat_tables(tables).combine_chunks())
        connection.sql(" UNION ALL ".join(f'SELECT count(*) FROM "{id}"' for id in streams)).fetchall()
        return moved

    once.close = session.close  # type: ignore[attr-defined]
    return once


async def compare(url: str, agents: int, ranks: int, rounds: int) -> None:
    app = create_app(GatewaySettings(evaluate_s=0, deadline_s=60, max_deadline_s=600))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", timeout=600) as gateway,
        httpx.AsyncClient(timeout=600, trust_env=False) as direct,
    ):
        for n in range(agents):
            answer = await gateway.put(f"/jobs/x/nodes/n{n}", json=registration(n, ranks, agents * ranks, url))
            assert answer.status_code == 200, answer.text

        async def health() -> dict[str, Any]:
            found: dict[str, Any] = (await gateway.get("/jobs/x/health?deadline=600")).json()
            return found

        await health()
        await direct.get(f"{url}/requests")
        body = await health()
        recorded = orjson.loads((await direct.get(f"{url}/requests")).content)
        assert body["coverage"]["complete"], body["coverage"]
        trips = max(len(b) for b in recorded.values())
        waves = [{path: bodies[i] for path, bodies in recorded.items() if i < len(bodies)} for i in range(trips)]
        hand = await by_hand(url, waves)
        moved = await hand()  # type: ignore[func-returns-value]
        # alternating, so that a busy machine is unfair to neither
        pairs = [(await measured(health, rounds // 3), await measured(hand, rounds // 3)) for _ in range(3)]
        ours = tuple(statistics.median(p[0][i] for p in pairs) for i in (0, 1))
        theirs = tuple(statistics.median(p[1][i] for p in pairs) for i in (0, 1))
        await hand.close()  # type: ignore[attr-defined]
    print(
        f"job_health of {agents * ranks} ranks on {agents} agents: {body['status']}, {trips} round trips, {moved:,} bytes"
    )
    print(f"  gateway           CPU {ours[0]:7.1f} ms   wall {ours[1]:7.1f} ms")
    print(f"  same bytes by hand CPU {theirs[0]:6.1f} ms   wall {theirs[1]:7.1f} ms")
    print(f"  ratio             CPU {ours[0] / theirs[0]:7.2f}      wall {ours[1] / theirs[1]:7.2f}")


def main() -> None:
    agents, ranks, rounds = (int(x) for x in (*sys.argv[1:], *("128", "8", "15")[len(sys.argv) - 1 :]))
    script = Path(__file__).with_name("simulated_agents.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(agents), str(ranks), str(STEPS)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        asyncio.run(compare(f"http://127.0.0.1:{port}", agents, ranks, rounds))
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
