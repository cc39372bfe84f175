"""CPU use of the rank processes and their threads, from outside: rows of cpu.utilization."""

from __future__ import annotations

from time import time_ns
from typing import Any

import psutil

from muster.probe.agent.proc import main_thread, thread_state
from muster.probe.agent.state import Cpu

_BUSY_THREADS = 16  # rows per process and sample, the busiest ones


class CpuSampler:
    """Compares each sample with the one before. Not for several threads at once."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], tuple[int, float, float, int, int]] = {}

    def sample(self, pid: int) -> tuple[list[dict[str, Any]], Cpu]:
        """Rows for a process and its busiest threads; none where it is gone or cannot be looked at."""
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                switches = process.num_ctx_switches()
                rss_kb = process.memory_info().rss // 1024
                threads = process.threads()
                name = process.name()
        except psutil.Error:
            return [], Cpu()
        now = time_ns()
        thread = main_thread(pid)
        whole = self._row(pid, 0, now, times.user, times.system, switches.voluntary, switches.involuntary)
        cpu = Cpu(whole["cpu_total_pct"] if whole else None, rss_kb)
        rows = []
        if whole is not None:
            rows.append(
                whole
                | {
                    "scope": "process", "comm": name, "rss_kb": rss_kb, "thread_count": len(threads),
                    "state": thread.state, "wchan": thread.wchan,
                }
            )  # fmt: skip
        found = [(t.id, self._row(pid, t.id, now, t.user_time, t.system_time, 0, 0)) for t in threads]
        self._forget_ended(pid, {0, *(t.id for t in threads)})
        busy = sorted(((tid, r) for tid, r in found if r is not None), key=lambda x: -x[1]["delta_total_ns"])
        for tid, row in busy[:_BUSY_THREADS]:
            known = thread_state(pid, tid)
            rows.append(
                row
                | {
                    "scope": "thread", "tid": tid, "comm": known.name, "state": known.state, "wchan": known.wchan,
                    "delta_vol_ctxt": None, "delta_invol_ctxt": None,
                }
            )  # fmt: skip
        return rows, cpu

    def forget(self, pid: int) -> None:
        """The process has ended."""
        self._forget_ended(pid, set())

    def _forget_ended(self, pid: int, threads: set[int]) -> None:
        for key in [k for k in self._before if k[0] == pid and k[1] not in threads]:
            del self._before[key]

    def _row(
        self, pid: int, tid: int, now: int, user: float, system: float, voluntary: int, involuntary: int
    ) -> dict[str, Any] | None:
        before = self._before.get((pid, tid))
        self._before[pid, tid] = (now, user, system, voluntary, involuntary)
        if before is None or now <= before[0]:
            return None
        wall = now - before[0]
        delta_user, delta_system = int((user - before[1]) * 1e9), int((system - before[2]) * 1e9)
        return {
            "ts": now // 1000,
            "wall_ns": wall,
            "delta_user_ns": delta_user,
            "delta_sys_ns": delta_system,
            "delta_total_ns": delta_user + delta_system,
            "cpu_user_pct": 100 * delta_user / wall,
            "cpu_sys_pct": 100 * delta_system / wall,
            "cpu_total_pct": 100 * (delta_user + delta_system) / wall,
            "delta_vol_ctxt": voluntary - before[3],
            "delta_invol_ctxt": involuntary - before[4],
        }
