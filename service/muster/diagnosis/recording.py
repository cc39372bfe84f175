"""How to get a table recorded, for whoever reads that it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.diagnosis.schema import Lang, Text
from muster.diagnosis.texts import say


def _text(en: str, zh: str) -> Text:
    return Text(en=en, zh=zh)


_RUN = _text(
    "Start the job with `muster run`, or call muster.probe.start() in it, and run an agent on every node.",
    "请用 `muster run` 启动任务，或在其中调用 muster.probe.start()，并在每个节点上运行代理。",
)
_FLIGHT = _text(
    "Import the dumps of torch's flight recorder (`muster import`), then ask with --from.",
    "请导入 torch flight recorder 的转储（`muster import`），再用 --from 查询。",
)


def _import(en: str, zh: str) -> Text:
    """For what no collector of this version records."""
    return _text(
        f"No collector of this version records it. Bring {en} as Parquet (`muster import`), then ask with --from.",
        f"本版本没有采集器记录它。请将{zh}以 Parquet 导入（`muster import`），再用 --from 查询。",
    )


_GPU = _import("samples of NVML or DCGM", " NVML 或 DCGM 的采样")
_NCCL = _import("the rows of NCCL's profiler plugin", " NCCL profiler 插件的记录")
HOW: Mapping[str, Text] = {
    "process.rank": _RUN,
    "process.exit": _RUN,
    "python.comm_collective": _RUN,
    "python.trace_event": _RUN,
    "python.torch_step_timing": _RUN,
    "python.checkpoint": _RUN,
    "cpu.utilization": _RUN,
    "python.torch_trace": _import("traces of module hooks", "模块钩子的跟踪"),
    "python.torch_nccl_flight_record": _FLIGHT,
    "python.torch_nccl_pg_status": _FLIGHT,
    "python.backtrace": _import("stacks of `py-spy dump --nonblocking`", " `py-spy dump --nonblocking` 的调用栈"),
    "gpu.utilization": _GPU,
    "gpu.devices": _GPU,
    "process.kmsg": _import("the messages of `dmesg` or the journal", " `dmesg` 或日志中的内核消息"),
    "net.tcp": _import("the counters of `ss -tin`", " `ss -tin` 的计数器"),
    "rdma.mlx_hca": _import("the counters of /sys/class/infiniband", " /sys/class/infiniband 的计数器"),
    "nccl.proxy_ops": _NCCL,
    "nccl.coll_perf": _NCCL,
    "nccl.inflight_ops": _NCCL,
    "nccl.profiler_counters": _NCCL,
    "nccl.net_qp": _NCCL,
}


def how_to_record(tables: Sequence[str], own: Mapping[str, Text], lang: Lang) -> str:
    """Which tables nobody records, and how to get them. `own`: the diagnosis's own texts, which come first."""
    ways = dict.fromkeys(text.of(lang) for t in tables if (text := own.get(t) or HOW.get(t)) is not None)
    return say(lang, "not_recorded", tables=", ".join(tables), how=" ".join(ways) or say(lang, "no_such_table"))
