"""Many agents in one process, over real HTTP: each path `/a<n>` answers as an agent of some ranks would.

Answers are computed by a real DuckDB on real rows the first time that a subquery comes, then kept, so that what is measured
is the side that asks. `GET /requests` gives the bodies that came since the last call, by path.

    python bench/simulated_agents.py AGENTS RANKS_PER_AGENT STEPS
"""

from __future__ import annotations

import io
import socket
import sys
from typing import Any

import orjson
import pyarrow as pa
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from muster.engine import arrow_of, open_engine, quote
from muster.protocol import ARROW_STREAM
from muster.tables import PROCESS_RANK, REGISTRY, STEP_TIMING, TAGS, Table

T0 = 1_780_000_000_000_000_000


class Agents:
    """All rows lie in one database; an agent sees those of its ranks."""

    def __init__(self, agents: int, ranks: int, steps: int) -> None:
        self.ranks = ranks
        self.requests: dict[str, list[str]] = {}
        self._kept: dict[tuple[int, str], bytes] = {}
        self._engine = open_engine(memory_limit="8GB", threads=2)
        for table in REGISTRY.values():
            if table.scope == "rank" and not table.optional:
                self._fill(table, agents * ranks, steps)

    def answer(self, agent: int, body: bytes) -> bytes:
        """The streams for one request."""
        request = orjson.loads(body)
        return b"".join(self._stream(agent, q["id"], q["sql"]) for q in request["queries"])

    def _stream(self, agent: int, id: str, sql: str) -> bytes:
        key = (agent, id + sql)
        if key not in self._kept:
            cursor = self._engine.cursor()
            first = agent * self.ranks
            for table in REGISTRY.values():
                if table.scope == "rank" and not table.optional:
                    name = f"{quote(table.schema)}.{quote(table.name)}"
                    where = f"_rank >= {first} AND _rank < {first + self.ranks}"
                    cursor.execute(
                        f"CREATE TEMP VIEW {quote(f'v_{table.full_name}')} AS SELECT * FROM {name} WHERE {where}"
                    )
                    sql = sql.replace(table.full_name, quote(f"v_{table.full_name}"))
            found = arrow_of(cursor, sql)
            meta = {
                "id": id, "rows": str(found.num_rows), "batches": str(len(found.to_batches())), "elapsed_ms": "1.0",
                "as_of": "2026-06-01T00:00:00+00:00", "rows_lost": "0", "oldest_step": "1",
                "ranks": orjson.dumps(list(range(first, first + self.ranks))).decode(),
            }  # fmt: skip
            sink = io.BytesIO()
            schema = found.schema.with_metadata(meta)
            with pa.ipc.new_stream(sink, schema) as writer:
                writer.write_table(found.replace_schema_metadata(schema.metadata))
            self._kept[key] = sink.getvalue()
            cursor.close()
        return self._kept[key]

    def _fill(self, table: Table, ranks: int, steps: int) -> None:
        """Healthy rows, made in SQL: a step of 21 ms, of which 1 ms is waiting, with 2 % jitter."""
        made = {
            "_rank": "r", "_host": f"'n' || (r // {self.ranks})", "_generation": "'g'",
            "_node_rank": f"r // {self.ranks}", "_local_rank": f"r % {self.ranks}",
            "rank": "r", "world_size": str(ranks), "global_step": "s", "local_step": "s",
            "step_duration_sec": "0.021 + 0.0004 * (hash(r, s) % 1000) / 1000", "comm_blocked_ms": "1.0",
            "tokens": "4096", "step_source": "'optimizer'", "comm_source": "'patch'",
            "end_ns": f"{T0} - ({steps} - s) * 21000000", "status": "'running'", "state": "'S'", "pid": "1000 + r",
            "as_of_ns": str(T0), "started_ns": str(T0 - 600 * 10**9), "last_row_ns": str(T0 - 5_000_000), "age_s": "0.005",
            "last_local_step": str(steps), "last_global_step": str(steps), "oldest_global_step": "1",
            "median_step_s": "0.021", "last_op": "'all_reduce'", "last_pg": "'0'", "last_seq": str(steps),
            "recorder_errors": "0",
        }  # fmt: skip
        columns = [*TAGS, *table.columns]
        listed = ", ".join(f"CAST({made.get(c.name, 'NULL')} AS {c.type}) AS {quote(c.name)}" for c in columns)
        per_rank = {STEP_TIMING.full_name: steps, PROCESS_RANK.full_name: 1}.get(table.full_name, 0)
        self._engine.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(table.schema)}")
        self._engine.execute(
            f"CREATE TABLE {quote(table.schema)}.{quote(table.name)} AS SELECT {listed}"
            f" FROM range({ranks}) a(r), range(1, {per_rank + 1}) b(s)"
        )


def registration(agent: int, ranks: int, world_size: int, url: str) -> dict[str, Any]:
    """What one of the agents would register."""
    started = "2026-06-01T00:00:00Z"
    first = agent * ranks
    return {
        "addr": f"{url}/a{agent}",
        "host": f"n{agent}",
        "world_size": world_size,
        "node_rank": agent,
        "ranks": [
            {
                "rank": r,
                "generation": "g",
                "local_rank": r - first,
                "node_rank": agent,
                "pid": 1000 + r,
                "started_at": started,
            }
            for r in range(first, first + ranks)
        ],
    }


def main() -> None:
    agents = Agents(*(int(a) for a in sys.argv[1:4]))

    async def query(request: Request) -> Response:
        agent = request.path_params["agent"]
        body = await request.body()
        agents.requests.setdefault(f"a{agent}", []).append(body.decode())
        return Response(agents.answer(agent, body), media_type=ARROW_STREAM)

    async def requests(request: Request) -> Response:
        found, agents.requests = agents.requests, {}
        return Response(orjson.dumps(found), media_type="application/json")

    app = Starlette(routes=[Route("/a{agent:int}/v1/query", query, methods=["POST"]), Route("/requests", requests)])
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", backlog=4096)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
