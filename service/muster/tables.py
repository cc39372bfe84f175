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

    `key_time` names the column that orders rows in time, with its unit in nanoseconds per tick. An `optional` table is
    offered only where something records it: that it is there, even without a row, says that somebody looks.
    """

    schema: str
    name: str
    meaning: str
    columns: tuple[Column, ...]
    scope: Scope = "rank"
    key_time: tuple[str, int] | None = None
    optional: bool = False

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

TAG_NAMES = tuple(t.name for t in TAGS)

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
        _text("comm_source", "what comm_blocked_ms was measured with: patch, ddp, dispatch or (imported) trace"),
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
        _int("inflight_peer", "other side of a send or recv, a global rank; NULL for a collective"),
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

TORCH_TRACE = Table(
    "python", "torch_trace", "One row for every hook of a module on a sampled step.",
    (
        *_STEP,
        _int("seq", "place of the hook within the step"),
        *_WHO,
        _text("module", "name of the module in the model"),
        _text("stage", "pre forward, post forward, pre step or post step"),
        _float("time_offset", "since the step began", "s"),
        _float("duration", "from the pre hook to the post hook", "s"),
        _float("allocated", "device memory in use by tensors", "MB"),
        _float("allocated_delta", "its change since the pre hook", "MB"),
        _float("max_allocated", "its peak", "MB"),
        _float("max_allocated_delta", "change of the peak since the pre hook", "MB"),
        _float("cached", "device memory that the allocator holds", "MB"),
        _float("max_cached", "its peak", "MB"),
    ),
    optional=True,
)  # fmt: skip

FLIGHT_RECORD = Table(
    "python", "torch_nccl_flight_record", "One row for every entry of a snapshot of torch's flight recorder.",
    (
        _int("snapshot_id", "when the snapshot was taken", "ns since the epoch"),
        _int("rank", "rank"),
        _int("world_size", "ranks of the job"),
        _int("record_id", "number of the entry in the recorder"),
        _int("pg_id", "number of the process group in this process"),
        _text("pg_name", "name of the process group"),
        _text("pg_desc", "its description"),
        _text("pg_ranks", "global ranks of the process group", json=True),
        _int("collective_seq_id", "sequence number of the collective in its group"),
        _int("p2p_seq_id", "sequence number of the send or recv in its group"),
        _int("op_id", "number of the operation in its group"),
        _text("profiling_name", "backend and operation, such as nccl:all_reduce"),
        _text("state", "scheduled, started or completed"),
        _text("input_sizes", "sizes of the inputs", json=True),
        _text("input_dtypes", "types of the inputs", json=True),
        _text("output_sizes", "sizes of the outputs", json=True),
        _text("output_dtypes", "types of the outputs", json=True),
        _int("time_created_ns", "when it was enqueued", "ns since the epoch"),
        _int("time_discovered_started_ns", "when it was seen to have started", "ns since the epoch"),
        _int("time_discovered_completed_ns", "when it was seen to be complete", "ns since the epoch"),
        _int("duration_ns", "time on the device where the recorder measures it", "ns"),
        _int("timeout_ms", "its limit", "ms"),
        _int("retired", "1 where the watchdog has put it aside"),
        _int("is_p2p", "1 for a send or recv"),
        _text("frames", "Python stack of the call, where the dump has it", json=True),
        _text("top_frame", "its innermost frame"),
    ),
    key_time=("snapshot_id", 1), optional=True,
)  # fmt: skip

PG_STATUS = Table(
    "python", "torch_nccl_pg_status", "One row for every process group of a snapshot of torch's flight recorder.",
    (
        _int("snapshot_id", "when the snapshot was taken", "ns since the epoch"),
        _int("rank", "rank"),
        _int("world_size", "ranks of the job"),
        _int("pg_id", "number of the process group in this process"),
        _text("pg_name", "name of the process group"),
        _text("pg_desc", "its description"),
        _text("ranks", "global ranks of the process group", json=True),
        _int("last_enqueued_collective", "sequence number of the newest that was enqueued"),
        _int("last_started_collective", "of the newest that has started"),
        _int("last_completed_collective", "of the newest that is complete"),
    ),
    key_time=("snapshot_id", 1), optional=True,
)  # fmt: skip

BACKTRACE = Table(
    "python", "backtrace", "Stacks of the threads of a rank, taken from outside: one row for every frame.",
    (
        _int("tid", "thread id"),
        _text("thread_name", "name of the thread"),
        _int("depth", "0 for the innermost frame"),
        _text("frame_type", "python or native"),
        _text("func", "function"),
        _text("file", "file of its code"),
        _int("lineno", "line in the file"),
        _int("ts", "when the stack was taken", "ns since the epoch"),
    ),
    key_time=("ts", 1), optional=True,
)  # fmt: skip

GPU_UTILIZATION = Table(
    "gpu", "utilization", "Use and state of the accelerators of a node, sampled from outside.",
    (
        _int("ts", "when", "µs since the epoch"),
        _text("backend", "cuda, rocm, …"),
        _int("device_id", "number of the device on the node"),
        _text("name", "name of the device"),
        _int("free_bytes", "free memory", "bytes"),
        _int("total_bytes", "memory", "bytes"),
        _int("used_bytes", "used memory", "bytes"),
        _float("mem_used_pct", "used memory", "%"),
        _float("gpu_util_pct", "time in which a kernel ran", "%"),
        _float("mem_controller_util_pct", "time in which memory was accessed", "%"),
        _float("temperature_c", "temperature", "°C"),
        _float("power_w", "power", "W"),
        _text("throttle_reasons", "why clocks are lowered, comma-separated"),
        _int("ecc_uncorrected", "uncorrected memory errors since the driver was loaded"),
        _int("wall_ns", "time since the sample before", "ns"),
    ),
    scope="node", key_time=("ts", 1_000), optional=True,
)  # fmt: skip

GPU_DEVICES = Table(
    "gpu", "devices", "The accelerators of a node.",
    (
        _int("device_id", "number of the device on the node"),
        _text("backend", "cuda, rocm, …"),
        _text("name", "name of the device"),
        _text("chip", "model of the chip"),
        _int("total_bytes", "memory", "bytes"),
        _text("pci_bus_id", "address on the PCI bus"),
        _text("uuid", "uuid of the device"),
    ),
    scope="node", optional=True,
)  # fmt: skip

KMSG = Table(
    "process", "kmsg", "Messages of the kernel of a node.",
    (
        _int("timestamp", "when", "µs since the epoch"),
        _text("facility", "facility, such as kern"),
        _text("level", "emerg, alert, crit, err, warn, notice, info or debug"),
        _text("message", "text"),
    ),
    scope="node", key_time=("timestamp", 1_000), optional=True,
)  # fmt: skip

NET_TCP = Table(
    "net", "tcp", "The kernel's counters of the TCP connections of a rank.",
    (
        _int("ts", "when", "ns since the epoch"),
        _int("rank", "rank"),
        _text("peer_addr", "address of the other side"),
        _float("busy_ms", "time with data in flight", "ms"),
        _float("rwnd_limited_ms", "of it, stopped by the receiver's window", "ms"),
        _float("sndbuf_limited_ms", "of it, stopped by the send buffer", "ms"),
        _int("retrans", "segments that were sent again"),
        _float("rtt_us", "round trip", "µs"),
        _float("delivery_rate", "newest rate of delivery", "bytes/s"),
    ),
    key_time=("ts", 1), optional=True,
)  # fmt: skip

RDMA = Table(
    "rdma", "mlx_hca", "Counters of the RDMA ports of a node.",
    (
        _int("ts", "when", "ns since the epoch"),
        _text("hca_name", "name of the adapter"),
        _int("port", "port"),
        _int("port_rcv_packets", "packets received"),
        _int("port_rcv_data", "data received", "4 bytes"),
        _int("port_xmit_packets", "packets sent"),
        _int("port_xmit_data", "data sent", "4 bytes"),
        _int("link_downed", "how often the link went down"),
        _int("np_cnp_sent", "congestion notifications sent"),
        _int("np_ecn_marked_roce_packets", "packets that came marked"),
        _float("rcv_pkts_rate", "packets received", "1/s"),
        _float("snd_pkts_rate", "packets sent", "1/s"),
    ),
    scope="node", key_time=("ts", 1), optional=True,
)  # fmt: skip

_NCCL_PLACE = (
    _int("rank", "rank"),
    _int("tp_rank", "tensor-parallel rank"),
    _int("pp_rank", "pipeline-parallel rank"),
    _int("dp_rank", "data-parallel rank"),
    _text("comm_hash", "hash of the communicator"),
)

NCCL_PROXY_OPS = Table(
    "nccl", "proxy_ops", "One row for every network operation of NCCL's proxy threads.",
    (
        _int("ts", "when it was complete", "ns since the epoch"),
        *_NCCL_PLACE,
        _text("coll_func", "collective, such as AllReduce"),
        _int("seq", "sequence number in the communicator"),
        _int("channel_id", "channel"),
        _int("peer", "rank of the other side"),
        _int("is_send", "1 for a send"),
        _int("n_steps", "steps of the operation"),
        _int("trans_bytes", "bytes moved"),
        _int("send_gpu_wait_ns", "waited for the own GPU to have data", "ns"),
        _int("send_peer_wait_ns", "waited for the peer to be ready", "ns"),
        _int("send_wait_ns", "waited for the network to take it", "ns"),
        _int("recv_wait_ns", "waited for data of the peer", "ns"),
        _int("recv_flush_wait_ns", "waited for the data to be visible to the GPU", "ns"),
    ),
    key_time=("ts", 1), optional=True,
)  # fmt: skip

NCCL_COLL_PERF = Table(
    "nccl", "coll_perf", "One row for every operation that NCCL's profiler timed.",
    (
        _int("ts", "when it was complete", "ns since the epoch"),
        *_NCCL_PLACE,
        _int("n_ranks", "ranks of the communicator"),
        _text("coll_func", "collective, such as AllReduce"),
        _int("seq", "sequence number in the communicator"),
        _int("is_p2p", "1 for a send or recv"),
        _int("peer", "rank of the other side of a send or recv"),
        _int("count", "elements"),
        _int("msg_size_bytes", "size", "bytes"),
        _text("dtype", "type of the elements"),
        _text("algo", "algorithm"),
        _text("proto", "protocol"),
        _int("n_channels", "channels"),
        _int("exec_time_ns", "time it took", "ns"),
        _int("enqueue_time_ns", "time from call to start", "ns"),
        _text("timing_source", "kernel_gpu, kernel_ch, proxy or enqueue"),
        _float("algobw_gbps", "size over time", "GB/s"),
    ),
    key_time=("ts", 1), optional=True,
)  # fmt: skip

NCCL_INFLIGHT = Table(
    "nccl", "inflight_ops", "Operations of NCCL that are under way.",
    (
        _int("ts", "when this was seen", "ns since the epoch"),
        _int("rank", "rank"),
        _text("comm_hash", "hash of the communicator"),
        _text("coll_func", "collective, such as AllReduce"),
        _int("seq", "sequence number in the communicator"),
        _text("kind", "coll, p2p or proxy_op"),
        _int("channel_id", "channel"),
        _int("peer", "rank of the other side"),
        _int("is_send", "1 for a send"),
        _int("start_ns", "when it began", "ns since the epoch"),
        _int("age_ns", "since when it is under way", "ns"),
    ),
    key_time=("ts", 1), optional=True,
)  # fmt: skip

NCCL_COUNTERS = Table(
    "nccl", "profiler_counters", "What NCCL's profiler plugin says of itself.",
    (
        _int("ts", "when", "ns since the epoch"),
        _int("rank", "rank"),
        _int("rows_written", "rows written"),
        _int("pool_exhausted", "events that found no room"),
        _int("write_errors", "rows that could not be written"),
        _int("filtered", "events that were not wanted"),
        _int("ring_rows_overwritten", "rows overwritten before they were read"),
        _int("coll_live", "collectives under way"),
        _int("coll_cap", "most collectives at once"),
        _int("proxy_live", "network operations under way"),
        _int("proxy_cap", "most network operations at once"),
    ),
    key_time=("ts", 1), optional=True,
)  # fmt: skip

NCCL_NET_QP = Table(
    "nccl", "net_qp", "One row for every work request of an RDMA queue pair.",
    (
        _int("ts", "when it was complete", "ns since the epoch"),
        _int("rank", "rank"),
        _text("device", "adapter"),
        _int("qp_num", "number of the queue pair"),
        _int("wr_id", "number of the work request"),
        _text("opcode", "operation"),
        _int("length", "size", "bytes"),
        _int("duration_ns", "time it took", "ns"),
    ),
    key_time=("ts", 1), optional=True,
)  # fmt: skip

REGISTRY: Mapping[str, Table] = {
    t.full_name: t
    for t in (
        NODES, COMM_COLLECTIVE, TRACE_EVENT, STEP_TIMING, CHECKPOINT, PROCESS_EXIT, PROCESS_RANK, CPU_UTILIZATION,
        TORCH_TRACE, FLIGHT_RECORD, PG_STATUS, BACKTRACE, GPU_UTILIZATION, GPU_DEVICES, KMSG, NET_TCP, RDMA,
        NCCL_PROXY_OPS, NCCL_COLL_PERF, NCCL_INFLIGHT, NCCL_COUNTERS, NCCL_NET_QP,
    )
}  # fmt: skip
"""Every table known by name, as `schema.name`. A probe may offer further ones; the gateway learns their columns from it."""
