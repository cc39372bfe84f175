"""A job as per-rank probes see it: 8 ranks on 3 nodes, and the uneven things that real jobs have.

Rank 3 is slow, rank 7 has fallen behind, rank 5 has no row yet, rank 6 does not know its role. Some operations are in
flight (NULL). One node has spans in none of its ranks (an empty shard); NCCL's tables, module timings, GPU samples, stacks
and flight records exist on some nodes only. Durations are multiples of 2^-10 and differ from each other, so that sums do
not depend on the order of the rows and an order by duration has no ties.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa

from muster.engine import arrow_type
from muster.federation.merge import Merger
from muster.federation.nodes import cluster_nodes
from muster.federation.service import Federation
from muster.federation.shards.base import Shard
from muster.federation.shards.local import LocalShard
from muster.model import JobView, RankInfo, RankStatus, ShardInfo
from muster.sql.plan import Statement
from muster.sql.planner import Planner
from muster.tables import REGISTRY, TAGS, Table
from oracle import Oracle

NODES = ((0, 1, 2), (3, 4, 5), (6, 7))
WORLD = 8
FIRST, LAST = 100, 119
T0 = 1_780_000_000_000_000_000
STEP_NS = 40_000_000
OPS = ("all_reduce", "all_gather", "barrier")
MODULES = ("encoder.attention", "encoder.mlp", "head")
ABSENT = {  # tables that a node does not have
    0: ("python.torch_nccl_flight_record", "python.torch_nccl_pg_status", "python.backtrace"),
    1: ("nccl.proxy_ops", "nccl.coll_perf", "nccl.inflight_ops", "gpu.utilization", "gpu.devices"),
    2: ("python.torch_trace",),
}
Row = dict[str, Any]


@dataclass(frozen=True)
class PublicJob:
    """The rows by owner (a rank, or `n<node>` for rows that belong to a node), the roster and the oracle over all."""

    rows: Mapping[str, Mapping[int | str, Sequence[Row]]]
    view: JobView
    oracle: Oracle

    @cached_property
    def alone(self) -> list[Oracle]:
        """Every rank's probe for itself, with the roster."""
        nodes = cluster_nodes(self.view)
        return [Oracle(self.tables(owners([r]), node_of(r)), nodes) for r in range(WORLD)]

    def tables(self, owners: Sequence[int | str], node: int) -> dict[str, pa.Table]:
        """What a probe that serves these owners holds."""
        return {
            name: _table(name, [row for owner in owners for row in by_owner.get(owner, ())])
            for name, by_owner in self.rows.items()
            if name not in ABSENT[node]
        }

    def shards(self, *, per_rank: bool) -> list[LocalShard]:
        """One shard for each node, or one for each rank as with probes that serve a single process."""
        groups = [[r] for r in range(WORLD)] if per_rank else [list(n) for n in NODES]
        return [
            LocalShard(f"s{i}", host_of(group[0]), group, self.tables(owners(group), node_of(group[0])))
            for i, group in enumerate(groups)
        ]

    def concatenated(self, sql: str) -> pa.Table:
        """Every rank's own answer to the text, one below the other: what a fan-out without a planner gives."""
        answers = []
        for probe in self.alone:
            try:
                answers.append(probe.run(Statement("q", sql)))
            except duckdb.CatalogException:
                continue  # this probe does not have the table
        return pa.concat_tables(answers)


def owners(ranks: Sequence[int]) -> list[int | str]:
    """The ranks, and the node for the one among them that comes first on it."""
    return [*ranks, *(f"n{i}" for i, members in enumerate(NODES) if members[0] in ranks)]


def node_of(rank: int) -> int:
    return next(i for i, ranks in enumerate(NODES) if rank in ranks)


def host_of(rank: int) -> str:
    return f"node{node_of(rank)}"


def role_of(rank: int) -> str | None:
    return None if rank == 6 else f"dp={rank // 2},tp={rank % 2}"


class Asked:
    """A federation over the shards of a job."""

    def __init__(self, job: PublicJob, planner: Planner, *, per_rank: bool) -> None:
        shards = job.shards(per_rank=per_rank)
        by_id: dict[str, Shard] = {s.info.id: s for s in shards}
        view = job.view
        self.view = JobView(view.job, view.generation, WORLD, view.ranks, tuple(s.info for s in shards), view.taken_at)
        self.merger = Merger()

        def shard(info: ShardInfo) -> Shard:
            return by_id[info.id]

        self.federation = Federation(
            planner=planner, shards=shard, mergers={"diagnosis": self.merger}, at_once={"diagnosis": 1}
        )


def make_public_job(seed: int = 7) -> PublicJob:
    rng = random.Random(seed)
    fresh = iter(rng.sample(range(1, 8 * 1024), 8 * 1024 - 1))

    def some() -> float:
        return next(fresh) / 1024

    makers: Mapping[str, Callable[[int, Callable[[], float]], Iterator[Row]]] = {
        "python.comm_collective": _collectives,
        "python.torch_step_timing": _steps,
        "python.torch_trace": _modules,
        "python.trace_event": _spans,
        "nccl.proxy_ops": _proxy_ops,
        "nccl.coll_perf": _coll_perf,
        "nccl.inflight_ops": _inflight,
        "python.backtrace": _stack,
        "python.torch_nccl_flight_record": _flight,
        "python.torch_nccl_pg_status": _groups,
        "cpu.utilization": _cpu,
        "python.checkpoint": _checkpoints,
        "process.exit": lambda rank, some: iter(()),
    }
    rows: dict[str, dict[int | str, list[Row]]] = {}
    for name, maker in makers.items():
        there = [r for r in range(WORLD) if r != 5 and name not in ABSENT[node_of(r)]]
        rows[name] = {r: [{**_tags(r), **row} for row in maker(r, some)] for r in there}
    for name, of_node in {"gpu.utilization": _gpus, "gpu.devices": _devices, "process.kmsg": _kernel}.items():
        nodes = [i for i in range(len(NODES)) if name not in ABSENT[i]]
        rows[name] = {f"n{i}": [{**_node_tags(i), **row} for row in of_node(i, some)] for i in nodes}
    return _job(rows)


def _job(rows: Mapping[str, Mapping[int | str, Sequence[Row]]]) -> PublicJob:
    whole = {n: _table(n, [row for by in by_owner.values() for row in by]) for n, by_owner in rows.items()}
    view = _view()
    return PublicJob(rows, view, Oracle(whole, cluster_nodes(view)))


def shaken(job: PublicJob, seed: int) -> PublicJob:
    """The job with rows lost or doubled, and with NULL, NaN, infinities, zeros and negatives here and there."""
    rng = random.Random(seed)
    rows = {
        name: {
            owner: [_shaken(row, REGISTRY[name], rng) for row in held for _ in range(rng.choice([0, 2] + [1] * 30))]
            for owner, held in by_owner.items()
        }
        for name, by_owner in job.rows.items()
    }
    return _job(rows)


def _shaken(row: Row, table: Table, rng: random.Random) -> Row:
    made = dict(row)
    for column in table.columns:
        dice = rng.random()
        if column.json or dice > 0.06:
            continue  # a text that is not JSON is the statement's error, not another answer
        if dice < 0.04:
            made[column.name] = None
        elif column.type == "DOUBLE":
            made[column.name] = rng.choice([math.nan, math.inf, -math.inf, 0.0, -0.0, -1.5])
        elif column.type == "BIGINT":
            made[column.name] = rng.choice([0, -1, 1, 7])
    return made


def _view() -> JobView:
    now = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
    status = {5: RankStatus.STALE, 7: RankStatus.DEAD}
    ranks = tuple(
        RankInfo(
            rank=r, generation="g1", node=host_of(r), host=host_of(r), addr=f"http://{host_of(r)}:8701",
            local_rank=NODES[node_of(r)].index(r), node_rank=node_of(r), role=role_of(r), pid=1000 + r,
            status=status.get(r, RankStatus.RUNNING), last_seen=now,
        )
        for r in range(WORLD)
    )  # fmt: skip
    return JobView("public", "g1", WORLD, ranks, (), now)


def _table(name: str, rows: Sequence[Row]) -> pa.Table:
    columns = [*TAGS, *REGISTRY[name].columns]
    return pa.table({c.name: pa.array([r.get(c.name) for r in rows], arrow_type(c.type)) for c in columns})


def _tags(rank: int) -> Row:
    node = node_of(rank)
    return {
        "_host": host_of(rank), "_addr": f"http://{host_of(rank)}:8701", "_rank": rank, "_node_rank": node,
        "_local_rank": NODES[node].index(rank), "_role": role_of(rank), "_generation": "g1",
    }  # fmt: skip


def _node_tags(node: int) -> Row:
    return {"_host": f"node{node}", "_addr": f"http://node{node}:8701", "_node_rank": node, "_generation": "g1"}


def _who(rank: int, step: int) -> Row:
    return {
        "rank": rank, "world_size": WORLD, "role": role_of(rank), "global_step": step, "local_step": step - FIRST,
        "micro_step": 2 * (step - FIRST), "micro_batches": 2,
    }  # fmt: skip


def _last(rank: int) -> int:
    return LAST - 9 if rank == 7 else LAST


def _at(rank: int, step: int, offset: int = 0) -> int:
    return T0 + (step - FIRST) * STEP_NS + rank * 1_000 + offset * 100_000


def _collectives(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    for step in range(FIRST, _last(rank) + 1):
        for i, op in enumerate(OPS):
            hangs = step == LAST and i == 1 and rank in (0, 1, 4)
            if step == LAST and i == 2 and rank in (0, 1, 4):
                continue
            start = _at(rank, step, i)
            took = None if hangs else some() + (16 if rank == 3 else 0)
            yield {
                **_who(rank, step), "op": op, "group_rank": rank % 2, "group_size": 2 if i == 1 else WORLD,
                "participate_ranks": str([rank - rank % 2, rank - rank % 2 + 1]) if i == 1 else str(list(range(WORLD))),
                "tensor_shape": None if op == "barrier" else f"[{1 + step % 3}, 1024]", "tensor_dtype": "bfloat16",
                "bytes": None if op == "barrier" else 2048 * (1 + step % 3), "duration_ms": took, "async_op": i % 2,
                "pg_name": str(i % 2), "seq": (step - FIRST) * 2 + i // 2, "occurrence": i, "thread_id": 1,
                "start_ns": start,
                "end_ns": None if took is None else start + int(took * 1e6),
                "blocked_ms": None if took is None else took / 2, "timing_source": "device" if rank % 2 else "wait",
            }  # fmt: skip


def _steps(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    for step in range(FIRST, _last(rank) + 1):
        shadow = int(step % 5 == 0)
        own = some()
        yield {
            **_who(rank, step), "step_duration_sec": (20 + own + (8 if rank == 3 else 0)) / 1024, "data_ms": own / 4,
            "forward_ms": own / 2, "backward_ms": own, "optimizer_ms": 0.5,
            "comm_blocked_ms": None if step % 7 == 0 else own / 8,
            "tokens": 4096 + rank, "loss": None if step % 4 == 0 else 2 + own / 8,
            "phase": "eval" if step == 110 else "train",
            "step_source": "optimizer", "is_shadow": shadow, "sampled": int(not shadow and step % 2 == 0),
            "sample_rate": 0.5,
            "shadow_baseline": 4.0, "end_ns": _at(rank, step, 9), "comm_source": "patch",
        }  # fmt: skip


def _modules(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    seq = 0
    for step in range(LAST - 7, _last(rank) + 1):
        for depth, module in enumerate(MODULES):
            for stage in ("pre forward", "post forward"):
                seq += 1
                leak = 3.0 * (step - LAST + 7) if rank == 4 else 0.25 * (step % 2)
                post = stage.startswith("post")
                yield {
                    **_who(rank, step), "seq": seq, "module": module, "stage": stage, "time_offset": seq / 1024,
                    "duration": some() / 1024 if post else 0.0, "allocated": 1000.0 + leak + depth + rank * 8,
                    "allocated_delta": some() / 64 if post and depth else None, "max_allocated": 1200.0 + leak,
                    "max_allocated_delta": 0.0, "cached": 1500.0, "max_cached": 1600.0 + rank,
                }  # fmt: skip
        seq += 1
        yield {**_who(rank, step), "seq": seq, "module": None, "stage": "post step", "duration": some() / 1024,
               "allocated": 1001.0 + rank * 8 + (3.0 * (step - LAST + 7) if rank == 4 else 0)}  # fmt: skip


def _spans(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    if node_of(rank) == 2:
        return
    for step in range(LAST - 4, LAST + 1):
        trace = rank * 1_000_000 + step
        for i, (name, phase) in enumerate((("train.step", ""), ("forward", "forward"), ("data", "data"))):
            span = trace * 10 + i
            start = _at(rank, step, i)
            base = {
                "trace_id": trace, "span_id": span, "parent_id": trace * 10 if i else None, "name": name, "phase": phase,
                "thread_id": 1, "location": f"train.py:{10 + i}", "rank": rank, "global_step": step,
                "local_step": step - FIRST,
            }  # fmt: skip
            attributes = f'{{"batch": {rank + step}, "source": {{"shard": "s{rank % 3}"}}}}' if i == 2 else None
            yield {**base, "record_type": "span_start", "time": start, "attributes": attributes}
            if not (step == LAST and rank == 4):
                yield {**base, "record_type": "span_end", "time": start + int(some() * 1e6)}
        yield {"record_type": "event", "trace_id": trace, "span_id": trace * 10, "name": "loss", "time": _at(rank, step, 5),
               "rank": rank, "global_step": step,
               "event_attributes": f'[{{"key": "loss", "value": {step / 8}}}]'}  # fmt: skip


def _proxy_ops(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    ring = [0, 1, 2, 6, 7]
    place = ring.index(rank)
    for seq in range(1, 9 if rank == 7 else 13):
        for is_send in (1, 0):
            peer = ring[(place + (1 if is_send else -1)) % len(ring)]
            slow = 90_000_000 if is_send and rank == 1 else 90_000_000 if not is_send and rank == 2 else 0
            wait = int(some() * 1e6) + slow
            yield {
                "ts": _at(rank, FIRST + seq, is_send), "rank": rank, "tp_rank": rank % 2, "pp_rank": 0,
                "dp_rank": rank // 2,
                "comm_hash": "c0", "coll_func": "AllReduce" if seq % 3 else "AllGather", "seq": seq, "channel_id": 0,
                "peer": peer, "is_send": is_send, "n_steps": 4, "trans_bytes": 4096,
                "send_gpu_wait_ns": wait if is_send else None, "send_peer_wait_ns": 1_000 if is_send else None,
                "send_wait_ns": wait // 4 if is_send else None, "recv_wait_ns": None if is_send else wait,
                "recv_flush_wait_ns": None if is_send else 500,
            }  # fmt: skip


def _coll_perf(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    for seq in range(1, 9):
        size = 1 << (10 + seq % 3)
        yield {
            "ts": _at(rank, FIRST + seq), "rank": rank, "comm_hash": "c0", "n_ranks": 5,
            "coll_func": "AllReduce", "seq": seq,
            "is_p2p": 0, "count": size // 2, "msg_size_bytes": size, "dtype": "bfloat16", "algo": "Ring", "proto": "Simple",
            "exec_time_ns": int(some() * 1e6), "timing_source": "kernel_gpu" if rank != 2 else "enqueue",
            "algobw_gbps": None if seq == 4 else some(),
        }  # fmt: skip


def _inflight(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    if rank in (0, 1):
        yield {"ts": _at(rank, LAST), "rank": rank, "comm_hash": "c0", "coll_func": "AllGather", "seq": 39, "kind": "coll",
               "start_ns": _at(rank, LAST, 1), "age_ns": int(some() * 1e9)}  # fmt: skip


def _stack(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    frames = (
        ["ncclAllGather", "all_gather_into_tensor", "train_step", "main"] if rank in (4, 6) else ["recv", "next", "main"]
    )
    for depth, func in enumerate(frames):
        yield {"tid": 1, "thread_name": "MainThread", "depth": depth, "frame_type": "native" if depth == 0 else "python",
               "func": func, "file": f"/app/{func}.py", "lineno": 10 + depth, "ts": _at(rank, LAST)}  # fmt: skip


def _flight(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    for i in range(6):
        state = "completed" if i < 4 else "started" if rank != 4 else "scheduled"
        created = T0 + i * STEP_NS + rank
        yield {
            "snapshot_id": T0 + 10**9, "rank": rank, "world_size": WORLD, "record_id": i, "pg_id": 0, "pg_name": "0",
            "pg_desc": "default_pg", "pg_ranks": str(list(range(WORLD))), "collective_seq_id": 30 + i, "op_id": 30 + i,
            "profiling_name": "nccl:all_reduce", "state": state, "input_sizes": f"[[{16 * (i + 1)}, 64]]",
            "time_created_ns": created, "time_discovered_completed_ns": created + int(some() * 1e6) if i < 4 else None,
            "duration_ns": int(some() * 1e6) if i < 4 else None, "timeout_ms": 600_000, "retired": int(i < 4), "is_p2p": 0,
            "top_frame": f"train.py:{40 + i}",
        }  # fmt: skip


def _groups(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    yield {"snapshot_id": T0 + 10**9, "rank": rank, "world_size": WORLD, "pg_id": 0, "pg_name": "0",
           "pg_desc": "default_pg",
           "last_enqueued_collective": 35, "last_started_collective": 33 if rank == 4 else 35,
           "last_completed_collective": 33}  # fmt: skip


def _cpu(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    for i in range(6):
        for tid, comm in ((None, "python"), (rank * 10 + 1, "pt_main_thread"), (rank * 10 + 2, "pt_data_worker")):
            yield {
                "ts": (T0 // 1000) + i * 1_000_000 + rank, "scope": "thread" if tid else "process",
                "tid": tid, "comm": comm,
                "cpu_total_pct": some(), "rss_kb": 4_000_000 + i * (40_000 if rank == 4 else 10) + rank, "thread_count": 40,
                "state": "S", "wchan": ("futex_wait_queue" if rank in (1, 4) else "") if tid else None,
            }  # fmt: skip


def _checkpoints(rank: int, some: Callable[[], float]) -> Iterator[Row]:
    if rank % 3 == 0:
        for step in (105, 110):
            yield {"ts": _at(rank, step), "rank": rank, "step": step, "kind": "save", "duration_ms": 100 + some(),
                   "bytes": 10**9 + rank, "path_hash": f"{step:x}"}  # fmt: skip


def _gpus(node: int, some: Callable[[], float]) -> Iterator[Row]:
    for i in range(5 if node == 0 else 3):
        for device in range(len(NODES[node])):
            used = (50 << 30) + i * (1 << 28 if device else 0) + device
            yield {
                "ts": (T0 // 1000) + i * 1_000_000 + node * 10 + device, "backend": "cuda",
                "device_id": device, "name": "H100",
                "used_bytes": used, "total_bytes": 80 << 30, "free_bytes": (80 << 30) - used,
                "mem_used_pct": used * 100 / (80 << 30), "gpu_util_pct": None if i == 3 else some() * 10,
                "temperature_c": 60.0 + device,
            }  # fmt: skip


def _devices(node: int, some: Callable[[], float]) -> Iterator[Row]:
    for device in range(len(NODES[node])):
        yield {"device_id": device, "backend": "cuda", "name": "H100", "chip": "sm_90", "total_bytes": 80 << 30,
               "uuid": f"GPU-{node}-{device}"}  # fmt: skip


def _kernel(node: int, some: Callable[[], float]) -> Iterator[Row]:
    for i, text in enumerate(("link is up", "Out of memory: Killed process 1007 (python)", "NVRM: Xid (PCI:0000:1b): 79")):
        if node == 2 or i == 0:
            yield {
                "timestamp": (T0 // 1000) + i + node * 10,
                "facility": "kern",
                "level": "err" if i else "info",
                "message": text,
            }
