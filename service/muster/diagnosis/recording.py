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
    "Switch on the agent's collector of the flight recorder, or import the dumps that torch wrote (`muster import`).",
    "请打开代理的 flight recorder 采集器，或导入 torch 写出的转储（`muster import`）。",
)
_GPU = _text(
    "Switch on the agent's GPU collector (it reads NVML) on nodes that have GPUs.",
    "请在有 GPU 的节点上打开代理的 GPU 采集器（读取 NVML）。",
)
_NCCL = _text(
    "Load NCCL's profiler plugin into the job and let the agent read its files, or import them (`muster import`).",
    "请在任务中加载 NCCL 的 profiler 插件并让代理读取其文件，或导入这些文件（`muster import`）。",
)
HOW: Mapping[str, Text] = {
    "process.rank": _RUN,
    "process.exit": _RUN,
    "python.comm_collective": _RUN,
    "python.trace_event": _RUN,
    "python.torch_step_timing": _RUN,
    "python.checkpoint": _RUN,
    "cpu.utilization": _RUN,
    "python.torch_trace": _text(
        "Switch on the module hooks in MUSTER_COLLECT; they are sampled and off by default.",
        "请在 MUSTER_COLLECT 中打开模块钩子；它们按采样运行，默认关闭。",
    ),
    "python.torch_nccl_flight_record": _FLIGHT,
    "python.torch_nccl_pg_status": _FLIGHT,
    "python.backtrace": _text(
        "Switch on the agent's collector of stacks; it needs py-spy and the right to read processes (CAP_SYS_PTRACE).",
        "请打开代理的调用栈采集器；它需要 py-spy 以及读取其他进程的权限（CAP_SYS_PTRACE）。",
    ),
    "gpu.utilization": _GPU,
    "gpu.devices": _GPU,
    "process.kmsg": _text(
        "Switch on the agent's collector of kernel messages; it needs the right to read /dev/kmsg (CAP_SYSLOG).",
        "请打开代理的内核消息采集器；它需要读取 /dev/kmsg 的权限（CAP_SYSLOG）。",
    ),
    "net.tcp": _text(
        "Switch on the agent's collector of TCP counters; it runs `ss -tin` in the network namespace of the job.",
        "请打开代理的 TCP 计数器采集器；它在任务的网络命名空间中运行 `ss -tin`。",
    ),
    "rdma.mlx_hca": _text(
        "Switch on the agent's collector of RDMA counters on nodes that have RDMA ports (/sys/class/infiniband).",
        "请在有 RDMA 端口（/sys/class/infiniband）的节点上打开代理的 RDMA 计数器采集器。",
    ),
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
