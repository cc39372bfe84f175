"""Directories and files of the recorder: private, owned, never followed through links, never sparse."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from muster.model import JOB_ID

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the directory below is private and its owner is checked
TEMPORARY = Path("/tmp")  # noqa: S108 - likewise


def roots(directory: str | os.PathLike[str] | None = None, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where recorders of this user may write, in order: `directory` (or MUSTER_DIR) alone when given, else
    /dev/shm/muster-<uid> and /tmp/muster-<uid>."""
    given = directory or environ.get("MUSTER_DIR")
    if given:
        return [Path(given)]
    name = f"muster-{os.geteuid()}"
    return [SHARED_MEMORY / name, TEMPORARY / name]


def check_job(job: str) -> str:
    """The job id, if it can be a directory. Raises ValueError with the rule."""
    if not JOB_ID.fullmatch(job) or set(job) == {"."}:
        raise ValueError(f"job id {job!r} must match {JOB_ID.pattern} and name a directory")
    return job


def open_root(path: Path) -> int:
    """A descriptor of the root directory, made if it is not there. Raises OSError when it is a link, not ours, or open to
    writes of others."""
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        pass
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkdir(path, DIRECTORY_MODE)
    return _owned(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), str(path))


def open_directory(name: str, parent: int, *, create: bool, fresh: bool = False) -> int:
    """A descriptor of a directory below another. `fresh`: it must not be there yet. Raises OSError as `open_root`."""
    if create:
        try:
            os.mkdir(name, DIRECTORY_MODE, dir_fd=parent)
        except FileExistsError:
            if fresh:
                raise
    return _owned(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent), name)


def _owned(descriptor: int, name: str) -> int:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(f"{name} belongs to user {status.st_uid}")
    if stat.S_IMODE(status.st_mode) & 0o022:
        os.close(descriptor)
        raise PermissionError(f"{name} can be written by other users; make it 0700")
    return descriptor


def create_file(name: str, parent: int, size: int) -> int:
    """A new file of `size` bytes with all its blocks reserved, so that a write through a mapping can never fail (a hole
    in a full file system would kill the writer with SIGBUS). Raises OSError, leaving nothing behind."""
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE, dir_fd=parent)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.close(descriptor)
        os.unlink(name, dir_fd=parent)
        raise
    return descriptor


def budget(directory: int, wanted: int, share: float = 0.1) -> int:
    """Bytes that may be used: `wanted`, at most `share` of what is free on the file system."""
    status = os.fstatvfs(directory)
    return min(wanted, int(status.f_bavail * status.f_frsize * share))


def remove_tree(name: str, parent: int) -> None:
    """Remove a directory of plain files below another, following no links. What is in the way stays."""
    try:
        descriptor = open_directory(name, parent, create=False)
    except OSError:
        return
    try:
        with os.scandir(descriptor) as entries:
            names = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        for entry, is_directory in names:
            if is_directory:
                remove_tree(entry, descriptor)
            else:
                os.unlink(entry, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=parent)
