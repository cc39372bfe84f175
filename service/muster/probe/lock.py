"""The owner lock of a rank: held for life by the process that records it.

POSIX record locks (`fcntl.lockf`) go with the process: they are not inherited by a fork, vanish at death however it came,
and are seen across PID namespaces. But closing *any* descriptor of the file drops the lock of the whole process, so
the file is opened once and never again by its holder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

LOCK_FILE = "owner.lock"
AGENT_LOCK = "agent.lock"
"""In the job's directory, held the same way by the agent that serves the job on this node."""
_FLOCK = struct.Struct("hhqqi4x")
_HELD: dict[tuple[int, int], str] = {}
"""Lives whose locks this process holds, by device and inode of the file: it must not be opened again. Belongs to the
process as the locks themselves do; a forked child starts without any."""


def _forget() -> None:
    _HELD.clear()


os.register_at_fork(after_in_child=_forget)


class OwnerLock:
    """A lock held by this process from `acquire` to `release` or death."""

    def __init__(self, descriptor: int, key: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._key = key

    @classmethod
    def acquire(cls, directory: int, life: str, name: str = LOCK_FILE) -> OwnerLock | None:
        """Take the lock file in a directory (a descriptor) and write the life into it; None if somebody else has it (or
        this process already). Raises OSError when the file cannot be opened."""
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if (status.st_dev, status.st_ino) in _HELD:
                return None
        except FileNotFoundError:
            pass
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return None
            raise
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino)
        _HELD[key] = life
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, life.encode(), 0)
        return cls(descriptor, key)

    def release(self) -> None:
        """Give the lock up."""
        if self._key in _HELD:
            del _HELD[self._key]
            os.close(self._descriptor)

    def abandon(self) -> None:
        """In a forked child: close the inherited descriptor. The parent keeps its lock."""
        os.close(self._descriptor)


class LockProbe:
    """Tells whether an owner lock is held, and by which life, without ever taking it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def holder(self) -> str | None:
        """The life that holds the lock; None if nobody does. Raises OSError when the file cannot be read."""
        status = os.stat(self._path, follow_symlinks=False)
        own = _HELD.get((status.st_dev, status.st_ino))
        if own is not None:  # opening it would be the end of the lock
            return own
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(self._descriptor, fcntl.F_GETLK, wanted)
        if _FLOCK.unpack(answer)[0] == fcntl.F_UNLCK:
            return None
        return os.pread(self._descriptor, 256, 0).decode("utf-8", "replace")

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
