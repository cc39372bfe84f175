"""How many bytes a diagnosis moves, beside the bytes of all the rows that it speaks of.

Every node is a real engine with the rows of its ranks, made from their numbers when it is asked and dropped when it has
answered, so that a large job fits into one process: nothing is extrapolated. Bytes moved are those of the Arrow streams
that the nodes answer with; the bytes of the rows are those of the tables that the statements name, as Arrow. One rank is
slow, and the steps have to show it. Times are multiples of 2^-10, so that sums do not depend on the order of the rows.

    python bench/bench_bytes.py [RANKS=1024] [ROWS=20000]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pyarrow as pa
import yaml

from muster.engine import arrow_of, open_engine, quote
from muster.federation.fanout import Budget
from muster.federation.merge import Merger
from muster.federation.service import Federation, StatementResult, fragments_of
from muster.federation.shards.base import Shard, SubAnswer
from muster.federation.shards.local import LocalShard
from muster.model import JobView, RankInfo, RankStatus, ShardInfo
from muster.protocol import RankRef, SubQuery
from muster.sql.plan import Statement
from muster.sql.planner import Planner
from muster.tables import CHECKPOINT, COMM_COLLECTIVE, PROCESS_RANK, REGISTRY, STEP_TIMING, TAGS

NOW = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
NOW_NS = int(NOW.timestamp()) * 1_000_000_000
RANKS_PER_NODE = 8
OPS = 4  # collectives in a step
BOUND = 1 / 100
WAVES = 2
BUDGET = Budget(total_bytes=4 << 30)  # so that what moves too much is measured and not refused

COMM = "global.python.comm_collective"
AS_ASKED_OF_PROBES = {
    "cluster_snapshot": """SELECT count(*) AS ranks, count(*) FILTER (WHERE status = 'running') AS running,
             count(*) FILTER (WHERE status = 'dead') AS dead FROM cluster.nodes""",
    "rank_step_lag": f"""WITH bounds AS (SELECT max(global_step) AS top FROM {COMM})
        SELECT _host, _rank, _local_rank, max(global_step) AS last_step,
               (SELECT top FROM bounds) - max(global_step) AS behind
        FROM {COMM}, bounds WHERE global_step >= (SELECT top - 200 FROM bounds)
        GROUP BY _host, _rank, _local_rank, bounds.top
        HAVING max(global_step) < (SELECT top - 5 FROM bounds) ORDER BY behind DESC""",
    "job_slowdown_proxy": f"""WITH by_rank AS (
          SELECT global_step, _rank, max(duration_ms) AS ms FROM {COMM}
          WHERE global_step >= (SELECT max(global_step) - 200 FROM {COMM}) GROUP BY global_step, _rank
        ), by_step AS (SELECT global_step, avg(ms) / nullif(min(ms), 0) AS ratio FROM by_rank GROUP BY global_step)
        SELECT avg(ratio) AS proxy, count(*) FILTER (WHERE ratio > 1.1) AS slow, count(*) AS steps FROM by_step""",
    "comm_trend_by_step": f"""SELECT global_step, sum(duration_ms) AS ms, count(*) AS calls, count(DISTINCT rank) AS ranks
        FROM {COMM} WHERE global_step >= (SELECT max(global_step) - 200 FROM {COMM})
        GROUP BY global_step ORDER BY global_step DESC LIMIT 30""",
    "worst_fraction": f"""WITH per_step AS (
          SELECT global_step, _rank, _host, sum(duration_ms) AS ms FROM {COMM}
          WHERE global_step >= (SELECT max(global_step) - 200 FROM {COMM}) GROUP BY global_step, _rank, _host
        ), marked AS (
          SELECT *, CASE WHEN ms = max(ms) OVER (PARTITION BY global_step) THEN 1 ELSE 0 END AS worst FROM per_step
        )
        SELECT _rank, _host, count(*) AS steps, sum(worst) * 1.0 / count(*) AS worst_fraction, avg(ms) AS avg_ms
        FROM marked GROUP BY _rank, _host ORDER BY worst_fraction DESC, avg_ms DESC""",
}
"""The steps of a job's health as users of per-rank probes write them, over the collectives."""


@dataclass(frozen=True)
class Size:
    """A job: `rows` of the largest table for each rank."""

    ranks: int
    rows: int

    @property
    def nodes(self) -> int:
        return self.ranks // RANKS_PER_NODE

    @property
    def slow(self) -> int:
        """The rank that is slow."""
        return self.ranks * 3 // 4 + 1


@dataclass
class Tally:
    """What the nodes were asked and what they answered."""

    requests: dict[str, int] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)  # bytes by fragment
    rows: dict[str, int] = field(default_factory=dict)  # bytes of all rows by table
    making_s: float = 0.0  # CPU, of making the rows
    answering_s: float = 0.0  # CPU, of the nodes' engines


def rows_of(node: int, size: Size, tables: Sequence[str]) -> dict[str, pa.Table]:
    """The rows of a node's ranks. Always the same for the same arguments."""
    engine = open_engine(memory_limit="4GB", threads=1)
    try:
        return {name: arrow_of(engine.cursor(), _making(name, node, size)) for name in tables}
    finally:
        engine.close()


def _making(name: str, node: int, size: Size) -> str:
    """A SELECT of a table's rows for the ranks of a node: `r` is the rank, `s` the step, `i` the operation in it."""
    steps = size.rows // OPS if name == COMM_COLLECTIVE.full_name else size.rows
    counts = {COMM_COLLECTIVE.full_name: OPS, STEP_TIMING.full_name: 1}
    every = {CHECKPOINT.full_name: 500, PROCESS_RANK.full_name: steps}.get(name, 1)
    own_ms = f"(20 + (hash(r, s) % 1000) / 1024.0 + CASE WHEN r = {size.slow} THEN 8 ELSE 0 END)"
    end = f"({NOW_NS} - ({steps} - s) * CAST(30000000 AS BIGINT) - hash(r, s, 1) % 1000000)"
    took = f"(CASE WHEN r = {size.slow} THEN 1 ELSE 3 END + (hash(r, s, i) % 1000) / 1024.0)"
    made = {
        "_host": f"'n{node}'", "_addr": f"'http://n{node}:8701'", "_rank": "r", "_node_rank": str(node),
        "_local_rank": f"r % {RANKS_PER_NODE}", "_role": "'dp=' || r", "_generation": "'g'",
        "rank": "r", "world_size": str(size.ranks), "role": "'dp=' || r", "global_step": "s", "local_step": "s",
        "micro_step": "s", "micro_batches": "1", "step": "s", "ts": end, "end_ns": end,
        # the collectives
        "op": "['all_reduce', 'all_gather', 'reduce_scatter', 'all_reduce'][i + 1]", "group_rank": "r",
        "group_size": str(size.ranks), "tensor_shape": "'[' || (1024 * (i + 1)) || ', 4096]'", "tensor_dtype": "'bfloat16'",
        "bytes": "8388608 * (i + 1)", "async_op": "1", "pg_name": "'0'", "seq": f"s * {OPS} + i", "occurrence": "i",
        "thread_id": "140000000", "start_ns": f"{end} - 4000000 * ({OPS} - i)", "wait_start_ns": end, "blocked_ms": took,
        "timing_source": "'device'", "participate_ranks": f"'[' || (r - r % {RANKS_PER_NODE}) || ', ' || r || ']'",
        # the steps
        "step_duration_sec": "(29.5 + (hash(r, s, 2) % 100) / 1024.0) / 1024", "comm_blocked_ms": f"29.5 - {own_ms}",
        "data_ms": "1.5", "forward_ms": f"{own_ms} / 3", "backward_ms": f"{own_ms} * 2 / 3 - 2", "optimizer_ms": "0.5",
        "tokens": "4096", "loss": "2 + 1.0 / s", "step_source": "'optimizer'", "comm_source": "'patch'", "is_shadow": "0",
        # the state of the rank
        "pid": "1000 + r", "state": "'S'", "as_of_ns": str(NOW_NS), "last_row_ns": f"{NOW_NS} - 5000000",
        "started_ns": f"{NOW_NS} - {steps} * CAST(30000000 AS BIGINT)", "age_s": "0.005", "last_local_step": str(steps),
        "last_global_step": str(steps),
        "oldest_global_step": "1", "median_step_s": "0.0295", "last_op": "'all_reduce'", "last_pg": "'0'",
        "last_seq": str(steps * OPS), "recorder_errors": "0", "rows_lost": "0", "cpu_pct": "95.0", "rss_kb": "8000000 + r",
    }  # fmt: skip
    if name == PROCESS_RANK.full_name:
        made["status"] = "'running'"
    made["duration_ms"] = "1500.0" if name == CHECKPOINT.full_name else took
    columns = [*TAGS, *REGISTRY[name].columns]
    listed = ", ".join(f"CAST({made.get(c.name, 'NULL')} AS {c.type}) AS {quote(c.name)}" for c in columns)
    first = node * RANKS_PER_NODE
    return (
        f"SELECT {listed} FROM range({first}, {first + RANKS_PER_NODE}) a(r), range({every}, {steps + 1}, {every}) b(s), "
        f"range({counts.get(name, 1)}) c(i)"
    )


class MadeShard:
    """A node whose rows exist only while it answers. One at a time."""

    def __init__(
        self, node: int, size: Size, tables: Sequence[str], info: ShardInfo, tally: Tally, turn: anyio.Lock
    ) -> None:
        self._node, self._size, self._tables = node, size, tables
        self._info = info
        self._tally = tally
        self._turn = turn

    @property
    def info(self) -> ShardInfo:
        return self._info

    async def query(
        self, subqueries: Sequence[SubQuery], ranks: Sequence[RankRef], schemas: Mapping[str, pa.Schema], deadline_s: float
    ) -> Sequence[SubAnswer]:
        async with self._turn:
            began = time.process_time()
            rows = rows_of(self._node, self._size, self._tables)
            shard = LocalShard(self._info.id, self._info.host, self._info.ranks, rows)
            made = time.process_time()
            answers = [self._counted(a) for a in await shard.query(subqueries, ranks, schemas, deadline_s)]
            self._tally.making_s += made - began
            self._tally.answering_s += time.process_time() - made
            if self._tally.requests.setdefault(self._info.id, 0) == 0:
                for name, table in rows.items():
                    self._tally.rows[name] = self._tally.rows.get(name, 0) + table.nbytes
            self._tally.requests[self._info.id] += 1
            before = time.process_time()
            del rows, shard
            self._tally.making_s += time.process_time() - before
        return answers

    def _counted(self, answer: SubAnswer) -> SubAnswer:
        if answer.table is None:
            return answer
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, answer.table.schema) as writer:
            writer.write_table(answer.table)
        size = sink.getvalue().size
        self._tally.moved[answer.id] = self._tally.moved.get(answer.id, 0) + size
        return replace(answer, nbytes=size)


class Job:
    """A job of a size with a federation over its nodes. Close it."""

    def __init__(self, size: Size, tables: Sequence[str]) -> None:
        self.tally = Tally()
        pattern = LocalShard("pattern", "n0", [0], {n: t.slice(0, 0) for n, t in rows_of(0, Size(8, 8), tables).items()})
        turn = anyio.Lock()
        shards: dict[str, Shard] = {}
        for node in range(size.nodes):
            ranks = tuple(range(node * RANKS_PER_NODE, (node + 1) * RANKS_PER_NODE))
            info = replace(pattern.info, id=f"n{node}", addr=f"local:n{node}", host=f"n{node}", ranks=ranks, node_rank=node)
            shards[info.id] = MadeShard(node, size, tables, info, self.tally, turn)
        roster = tuple(
            RankInfo(
                rank=r, generation="g", node=f"n{r // RANKS_PER_NODE}", host=f"n{r // RANKS_PER_NODE}", role=f"dp={r}",
                role_name="default", local_rank=r % RANKS_PER_NODE, node_rank=r // RANKS_PER_NODE, pid=1000 + r,
                status=RankStatus.RUNNING, last_seen=NOW,
            )
            for r in range(size.ranks)
        )  # fmt: skip
        self.view = JobView("bytes", "g", size.ranks, roster, tuple(s.info for s in shards.values()), NOW)
        self._merger = Merger(memory_limit="4GB")

        def shard(info: ShardInfo) -> Shard:
            return shards[info.id]

        self.federation = Federation(
            planner=Planner(), shards=shard, mergers={"diagnosis": self._merger}, at_once={"diagnosis": 1}
        )

    def close(self) -> None:
        self._merger.close()


@dataclass(frozen=True)
class Line:
    """A step: bytes moved for it (also where another step shares them), bytes of all rows of the tables that it names."""

    step: str
    moved: int
    rows: int

    @property
    def share(self) -> float:
        return self.moved / self.rows if self.rows else 0.0


@dataclass(frozen=True)
class Measured:
    """Figures of all steps asked together. `merging_s` is CPU of planning and merging, `answering_s` of all nodes."""

    lines: tuple[Line, ...]
    moved: int
    rows: int
    waves: int
    requests: int
    merging_s: float
    answering_s: float
    results: Mapping[str, StatementResult]

    @property
    def share(self) -> float:
        return self.moved / self.rows


async def measure(size: Size, tables: Sequence[str], statements: Sequence[Statement]) -> Measured:
    """Ask all statements together over the whole job. Raises AssertionError if one has no answer of every rank."""
    job = Job(size, tables)
    try:
        began = time.process_time()
        results = await job.federation.run(statements, job.view, deadline_s=600, budget=BUDGET)
        spent = time.process_time() - began - job.tally.making_s - job.tally.answering_s
        plan, refused = await job.federation.plan(statements, job.view)
        assert not refused, refused
        for result in results.values():
            assert result.error is None, result.error
            assert result.coverage.complete, result.coverage
        named = {f.id: f.tables for f in plan.fragments}
        lines = []
        for merge in plan.merges:
            used = [f for f in fragments_of(merge, plan) if f in named]
            over = {t for f in used for t in named[f]}
            lines.append(Line(merge.statement, sum(job.tally.moved[f] for f in used), sum(job.tally.rows[t] for t in over)))
        read = {t for f in named.values() for t in f}
        first = next(iter(results.values()))
        return Measured(
            tuple(lines), first.bytes_moved, sum(job.tally.rows[t] for t in read), first.waves,
            max(job.tally.requests.values()), spent, job.tally.answering_s, results,
        )  # fmt: skip
    finally:
        job.close()


OWN_TABLES = (STEP_TIMING.full_name, PROCESS_RANK.full_name, CHECKPOINT.full_name)
PROBE_TABLES = (COMM_COLLECTIVE.full_name,)


def own_steps() -> list[Statement]:
    """The steps of `job_health` with the defaults of its parameters."""
    diagnosis = yaml.safe_load((Path(__file__).parents[1] / "queries/job_health.yaml").read_text())
    defaults = {n: p["default"] for n, p in diagnosis["parameters"].items() if "default" in p}
    return [
        Statement(s["name"], s["sql"], {n: v for n, v in defaults.items() if f"${n}" in s["sql"]})
        for s in diagnosis["steps"]
    ]


def probe_steps() -> list[Statement]:
    return [Statement(name, sql) for name, sql in AS_ASKED_OF_PROBES.items()]


def report(title: str, found: Measured) -> bool:
    """Print the figures; whether they are within the bounds."""
    print(f"\n{title}")
    print(f"{'step':<22}{'bytes moved':>14}{'bytes of all rows':>20}{'share':>10}")
    for line in found.lines:
        print(f"{line.step:<22}{line.moved:>14,}{line.rows:>20,}{line.share:>10.3%}")
    print(f"{'all together':<22}{found.moved:>14,}{found.rows:>20,}{found.share:>10.3%}")
    print(
        f"{found.waves} waves, {found.requests} requests a node; CPU: {found.merging_s:.2f} s planning and merging, "
        f"{found.answering_s:.1f} s the engines of all nodes"
    )
    good = found.share <= BOUND and found.waves == found.requests == WAVES
    print("within" if good else "NOT WITHIN", f"the bounds: a share of {BOUND:.0%}, {WAVES} waves")
    return good


async def main() -> int:
    numbers = [int(a) for a in sys.argv[1:3]]
    size = Size(*numbers, *(1024, 20_000)[len(numbers) :])
    print(f"{size.ranks} ranks on {size.nodes} nodes, {size.rows:,} rows a rank, {size.ranks * size.rows:,} in all")
    own = await measure(size, OWN_TABLES, own_steps())
    good = report("steps of job_health", own)
    slowest = own.results["job_slowdown_proxy"].table
    assert slowest is not None
    found = slowest.column("rank")[0].as_py()
    print(f"slowest by job_slowdown_proxy: rank {found}, planted: rank {size.slow}")
    good &= found == size.slow
    asked = await measure(size, PROBE_TABLES, probe_steps())
    good &= report("the same questions over collectives, as asked of per-rank probes", asked)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(anyio.run(main))
