"""What the kernel says of a process, from outside. Everything is None where it cannot be known."""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

_PIDFD_INFO = struct.Struct("=QQ11Ii")  # mask, cgroupid, pid … fsgid, exit_code: 64 bytes in the kernel's first version
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11  # _IOWR(0xFF, 11, struct pidfd_info)


@dataclass(frozen=True, slots=True)
class ThreadState:
    """Of a thread: state letter of /proc, the kernel function that it waits in, its name."""

    state: str | None
    wchan: str | None
    start_ticks: int | None
    name: str | None = None


def thread_state(pid: int, tid: int, root: Path = Path("/proc")) -> ThreadState:
    """State of one thread of a process; all None once it is gone."""
    task = root / str(pid) / "task" / str(tid)
    try:
        head, _, tail = (task / "stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return ThreadState(None, None, None)
    fields = tail.split()
    try:
        wchan = (task / "wchan").read_text().strip()
    except OSError:
        wchan = ""
    return ThreadState(fields[0], wchan if wchan not in ("", "0") else None, int(fields[19]), head.partition("(")[2])


def main_thread(pid: int, root: Path = Path("/proc")) -> ThreadState:
    """State of the main thread of a process; all None once it is gone."""
    return thread_state(pid, pid, root)


def zombie_status(pid: int, start_ticks: int | None, root: Path = Path("/proc")) -> int | None:
    """The wait status of a process that has ended and not been reaped (field 52 of /proc/<pid>/stat); else None."""
    try:
        fields = (root / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] != "Z" or start_ticks not in (None, int(fields[19])):
        return None
    return int(fields[49])


def has_memory(pid: int, start_ticks: int | None, root: Path = Path("/proc")) -> bool:
    """Whether the process is there and still has its memory: what is dying has given that up before its locks."""
    try:
        fields = (root / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZXx" and start_ticks in (None, int(fields[19])) and int(fields[20]) > 0


def boot_id(root: Path = Path("/proc")) -> str | None:
    try:
        return (root / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def open_pidfd(pid: int, start_ticks: int | None) -> int | None:
    """A descriptor that becomes readable when the process ends; None where it is another process or already gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    if start_ticks is not None and main_thread(pid).start_ticks != start_ticks:
        os.close(descriptor)
        return None
    return descriptor


def exit_status(pidfd: int) -> int | None:
    """The wait status of an ended process by PIDFD_GET_INFO (Linux 6.15), once its parent has reaped it; else None."""
    buffer = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(buffer, 0, _PIDFD_INFO_EXIT, *([0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    mask, *_, code = _PIDFD_INFO.unpack(buffer)
    return int(code) if mask & _PIDFD_INFO_EXIT else None
