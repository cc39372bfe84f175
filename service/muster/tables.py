"""The one registry of tables: names, columns, DuckDB types, units, meanings. Everything else reads it.

Names and columns are those that users of per-rank probes know. Standard library only: the recorder, which lives inside
the training process, imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Type = Literal["BIGINT", "DOUBLE", "VARCHAR", "BOOLEAN"]
Scope = Literal["rank", "node", "gateway"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `unit` is empty where the name or meaning says all; `json` marks texts that hold a JSON value.

    `text_bytes` is how much room the recorder keeps for a VARCHAR in every row; 0 means that the values are few and are
    kept once each in the ring's string table.
    """

    name: str
    type: Type
    meaning: str
    unit: str = ""
    json: bool = False
    text_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `scope` says what one row belongs to; a `node` table has `_rank` NULL.

    `key_time` names the column that orders rows in time, with its unit in nanoseconds per tick.
    """

    schema: str
    name: str
    meaning: str
    columns: tuple[Column, ...]
    scope: Scope = "rank"
    key_time: tuple[str, int] | None = None

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name == name), None)


def _int(name: str, meaning: str, unit: str = "") -> Column:
    return Column(name, "BIGINT", meaning, unit)


def _float(name: str, meaning: str, unit: str = "") -> Column:
    return Column(name, "DOUBLE", meaning, unit)


def _text(name: str, meaning: str, *, text_bytes: int = 0, json: bool = False) -> Column:
    return Column(name, "VARCHAR", meaning, json=json, text_bytes=text_bytes)


TAGS: tuple[Column, ...] = (
    _text("_host", "host of the probe that the row came from, by the scheduler's name"),
    _text("_addr", "address of that probe"),
    _int("_rank", "rank that the row came from; NULL in tables of a node"),
    _int("_node_rank", "rank of the node in the job"),
    _int("_local_rank", "rank within the node"),
    _text("_role", "parallel key of the rank, such as dp=2,pp=1,tp=0"),
    _text("_generation", "generation of the job that the row belongs to"),
)

_STEP = (
    _int("micro_step", "micro batches seen so far"),
    _int("local_step", "steps since this process started"),
    _int("global_step", "steps of the job, counted over restarts where the script says so"),
    _int("micro_batches", "micro batches in a step"),
)
_WHO = (
    _int("rank", "rank as the process wrote it"),
    _int("world_size", "ranks of the job as the process saw it"),
    _text("role", "parallel key of the rank"),
)

NODES = Table(
    "cluster", "nodes", "The gateway's own roster: one row for every expected rank, whether it answers or not.",
    (
        _text("host", "host name, by the scheduler's name for it"),
        _text("addr", "address of the probe"),
        _int("rank", "rank"),
        _int("local_rank", "rank within the node"),
        _int("world_size", "expected ranks of the job"),
        _int("group_rank", "rank of the node"),
        _int("group_world_size", "nodes of the job"),
        _text("role_name", "name of the role (torchrun)"),
        _int("role_rank", "rank within the role"),
        _int("role_world_size", "ranks of the role"),
        _text("role", "parallel key, such as dp=2,pp=1,tp=0"),
        _text("status", "running, stale, dead, missing or finished"),
        _int("timestamp", "when this row was made", "µs since the epoch"),
        _text("generation", "generation"),
        _int("pid", "process id on its host"),
        _int("last_seen", "when its agent last reported it", "µs since the epoch"),
        _float("last_progress_s", "age of its newest row when last reported", "s"),
    ),
    scope="gateway", key_time=("timestamp", 1_000),
)  # fmt: skip

INFORMATION_TABLES = Table(
    "information_schema", "tables", "Which tables exist on which ranks: one row for every table and rank that has it.",
    (
        *TAGS,
        _text("table_catalog", "always global"),
        _text("table_schema", "schema of the table"),
        _text("table_name", "name of the table"),
        _text("table_type", "always BASE TABLE"),
    ),
    scope="gateway",
)  # fmt: skip

INFORMATION_COLUMNS = Table(
    "information_schema", "columns", "Which columns they have: one row for every table, column and rank that has it.",
    (
        *TAGS,
        _text("table_catalog", "always global"),
        _text("table_schema", "schema of the table"),
        _text("table_name", "name of the table"),
        _text("column_name", "name of the column"),
        _int("ordinal_position", "place in the table, from 1"),
        _text("is_nullable", "always YES"),
        _text("data_type", "type, as DESCRIBE says it"),
    ),
    scope="gateway",
)  # fmt: skip

GATEWAY_TABLES: Mapping[str, Table] = {t.full_name: t for t in (NODES, INFORMATION_TABLES, INFORMATION_COLUMNS)}
"""Tables that the gateway itself answers, from what it knows of the job."""


COMM_COLLECTIVE = Table(
    "python", "comm_collective", "One row for every collective or point-to-point operation, also while in flight.",
    (
        *_STEP,
        *_WHO,
        _text("op", "all_reduce, all_gather, reduce_scatter, broadcast, barrier, send, recv, …"),
        _int("group_rank", "rank within the process group"),
        _int("group_size", "ranks of the process group"),
        _text("participate_ranks", "global ranks of the process group", json=True),
        _text("tensor_shape", "shape of the (first) tensor", json=True),
        _text("tensor_dtype", "type of its elements"),
        _int("bytes", "bytes of the tensors on this rank"),
        _float("duration_ms", "from the call to its completion; NULL while in flight", "ms"),
        _int("async_op", "1 where the call returned before completion"),
        _text("pg_name", "name of the process group"),
        _int("seq", "sequence number in the process group, where the backend has one"),
        _int("occurrence", "how often this thread called this op on this group in this step before"),
        _int("thread_id", "operating-system id of the calling thread"),
        _int("start_ns", "when the call started, clock of the host", "ns since the epoch"),
        _int("wait_start_ns", "when the wait for an async operation started", "ns since the epoch"),
        _int("end_ns", "when it completed; NULL while in flight", "ns since the epoch"),
        _float("blocked_ms", "time the caller was blocked: call and wait, without overlapped compute", "ms"),
        _text("timing_source", "device, sync, wait or enqueue: what the times can say"),
        _int("peer", "global rank of the other side of a send or recv"),
        _text("in_splits", "input splits of an all_to_all", json=True, text_bytes=96),
        _text("out_splits", "output splits of an all_to_all", json=True, text_bytes=96),
        _text("error", "error that the operation raised", text_bytes=160),
    ),
    key_time=("start_ns", 1),
)  # fmt: skip

TRACE_EVENT = Table(
    "python", "trace_event", "Starts and ends of spans, and events.",
    (
        _text("record_type", "span_start, span_end or event"),
        _int("trace_id", "trace"),
        _int("span_id", "span, unique in the job"),
        _int("parent_id", "enclosing span; NULL for none"),
        _text("name", "name, such as train.step"),
        _text("phase", "forward, backward, optimizer, data, checkpoint, eval; NULL for none"),
        _int("time", "clock of the host", "ns since the epoch"),
        _int("thread_id", "operating-system id of the thread"),
        _text("location", "file:line of the code"),
        _text("attributes", "attributes of the span", json=True, text_bytes=160),
        _text("event_attributes", "attributes of the event", json=True, text_bytes=160),
        _int("local_step", "steps since this process started"),
        _int("global_step", "steps of the job"),
        _int("rank", "rank as the process wrote it"),
    ),
    key_time=("time", 1),
)  # fmt: skip

STEP_TIMING = Table(
    "python", "torch_step_timing", "One row for every completed training step.",
    (
        *_STEP,
        *_WHO,
        _float("step_duration_sec", "wall time from the end of the step before to the end of this one", "s"),
        _float("data_ms", "time in the data loader's next", "ms"),
        _float("forward_ms", "time in forward", "ms"),
        _float("backward_ms", "time in backward", "ms"),
        _float("optimizer_ms", "time in the optimizer", "ms"),
        _float("comm_blocked_ms", "time blocked in communication; NULL where nothing saw it", "ms"),
        _int("tokens", "tokens or samples that the step worked on"),
        _float("loss", "loss that the script reported"),
        _text("phase", "NULL for a training step; checkpoint or eval where the step held such a span, else warmup"),
        _text("step_source", "user, optimizer, ddp, or other: what counts the steps"),
        _int("is_shadow", "1 for a step without the probe's hooks"),
        _int("sampled", "1 where module hooks were on"),
        _float("shadow_normal", "median of normal steps", "s"),
        _float("shadow_baseline", "median of shadow steps", "s"),
        _float("sample_rate", "share of steps that are sampled"),
        _text("sample_mode", "how steps are sampled"),
        _int("end_ns", "when the step ended, clock of the host", "ns since the epoch"),
        _text("comm_source", "what comm_blocked_ms was measured with: patch, ddp or dispatch"),
    ),
    key_time=("end_ns", 1),
)  # fmt: skip

CHECKPOINT = Table(
    "python", "checkpoint", "One row for every checkpoint written.",
    (
        _int("ts", "when it was complete", "ns since the epoch"),
        _int("rank", "rank as the process wrote it"),
        _int("step", "global step"),
        _text("kind", "torch.save, distributed or user"),
        _float("duration_ms", "time to write it", "ms"),
        _int("bytes", "size where known"),
        _text("path_hash", "hash of the path, never the path itself", text_bytes=16),
    ),
    key_time=("ts", 1),
)  # fmt: skip

PROCESS_EXIT = Table(
    "process", "exit", "How a training process ended.",
    (
        _int("ts", "when", "ns since the epoch"),
        _int("rank", "rank"),
        _text("kind", "exit, signal, exception or vanished"),
        _int("code", "exit code where known"),
        _int("signal", "signal number where known"),
        _text("exception", "type of the exception", text_bytes=80),
        _text("message", "its message", text_bytes=240),
        _int("last_step", "global step of its last row"),
    ),
    key_time=("ts", 1),
)  # fmt: skip

PROCESS_RANK = Table(
    "process", "rank",
    "State of every rank as its agent sees it from outside, made anew for every query: one row for each rank.",
    (
        _int("rank", "rank"),
        _int("world_size", "ranks of the job as the process saw it"),
        _int("pid", "process id on the host"),
        _text("status", "running, dead or finished"),
        _text("state", "state of the main thread in /proc: R, S, D, T, Z; NULL once gone"),
        _text("wchan", "kernel function that the main thread waits in, where readable"),
        _int("as_of_ns", "clock of the agent when this row was made", "ns since the epoch"),
        _int("started_ns", "when the process started recording", "ns since the epoch"),
        _int("last_row_ns", "time of the newest row or in-flight start of the main thread", "ns since the epoch"),
        _float("age_s", "as_of_ns - last_row_ns, one clock", "s"),
        _int("last_local_step", "steps completed since the process started"),
        _int("last_global_step", "newest completed global step"),
        _int("oldest_global_step", "oldest step that the agent still holds for the rank"),
        _float("median_step_s", "median wall time of the newest 200 steps", "s"),
        _text("last_op", "newest completed collective"),
        _text("last_pg", "its process group"),
        _int("last_seq", "its sequence number in the group"),
        _text("inflight_op", "oldest operation in flight on the main thread; NULL for none"),
        _text("inflight_pg", "its process group"),
        _int("inflight_seq", "its sequence number in the group"),
        _text("inflight_ranks", "global ranks of its process group", json=True),
        _float("inflight_age_s", "since when it is in flight", "s"),
        _text("open_span", "innermost open span of the main thread"),
        _text("open_phase", "outermost phase other than forward, backward, optimizer that is open on the main thread"),
        _float("open_span_age_s", "since when that phase, else that span, is open", "s"),
        _text("step_source", "what counts the steps"),
        _int("rows_lost", "rows overwritten or dropped before the agent could keep them"),
        _int("recorder_errors", "errors that the recorder counted"),
        _text("exit_kind", "exit, signal, exception or vanished; NULL while it runs"),
        _int("exit_code", "exit code where known"),
        _int("exit_signal", "signal number where known"),
        _text("exit_message", "exception and message where known"),
        _int("exit_ns", "when it ended, or was first seen gone", "ns since the epoch"),
        _float("cpu_pct", "CPU use of the process since the sample before", "% of one core"),
        _int("rss_kb", "resident memory", "KiB"),
    ),
    key_time=("as_of_ns", 1),
)  # fmt: skip

CPU_UTILIZATION = Table(
    "cpu", "utilization", "CPU use of the training processes and their threads, sampled from outside.",
    (
        _int("ts", "when", "µs since the epoch"),
        _text("scope", "process or thread"),
        _int("tid", "thread id"),
        _text("comm", "name of the thread"),
        _int("wall_ns", "time since the sample before", "ns"),
        _int("delta_user_ns", "user time in it", "ns"),
        _int("delta_sys_ns", "system time in it", "ns"),
        _int("delta_total_ns", "sum of both", "ns"),
        _float("cpu_user_pct", "user time", "% of one core"),
        _float("cpu_sys_pct", "system time", "% of one core"),
        _float("cpu_total_pct", "sum of both", "% of one core"),
        _int("rss_kb", "resident memory", "KiB"),
        _int("thread_count", "threads of the process"),
        _int("delta_vol_ctxt", "voluntary context switches"),
        _int("delta_invol_ctxt", "involuntary context switches"),
        _text("state", "R, S, D, T, Z as in /proc"),
        _text("wchan", "kernel function it waits in, where readable"),
    ),
    key_time=("ts", 1_000),
)  # fmt: skip

REGISTRY: Mapping[str, Table] = {
    t.full_name: t
    for t in (
        NODES, COMM_COLLECTIVE, TRACE_EVENT, STEP_TIMING, CHECKPOINT, PROCESS_EXIT, PROCESS_RANK, CPU_UTILIZATION,
    )
}  # fmt: skip
"""Every table known by name, as `schema.name`. A probe may offer further ones; the gateway learns their columns from it."""
