"""Who this process is: job, rank and host, from arguments and from what launchers put into the environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

DEFAULT_RING_BYTES = 8 << 20


@dataclass(slots=True)
class Identity:
    """The identity that every row and the meta file repeat. `role` and `generation` may become known later."""

    job: str
    rank: int
    world_size: int | None
    host: str
    node: str
    generation: str
    generation_final: bool = False
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    role: str | None = None
    role_name: str | None = None
    role_rank: int | None = None
    role_world_size: int | None = None
    gateway: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_ENVIRONMENT: Mapping[str, tuple[str, ...]] = {
    "rank": ("RANK", "MUSTER_RANK"),
    "world_size": ("WORLD_SIZE", "MUSTER_WORLD_SIZE"),
    "local_rank": ("LOCAL_RANK",),
    "local_world_size": ("LOCAL_WORLD_SIZE",),
    "node_rank": ("GROUP_RANK", "NODE_RANK"),
    "role_rank": ("ROLE_RANK",),
    "role_world_size": ("ROLE_WORLD_SIZE",),
}
_TEXTS: Mapping[str, tuple[str, ...]] = {
    "job": ("MUSTER_JOB",),
    "role": ("MUSTER_ROLE",),
    "role_name": ("ROLE_NAME",),
    "gateway": ("MUSTER_GATEWAY",),
    "node": ("MUSTER_NODE", "SLURMD_NODENAME", "NODE_NAME"),
}
IDENTITY_FIELDS = frozenset(f.name for f in fields(Identity))


def identity(arguments: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Identity:
    """Arguments first, then the environment, then defaults: job `default`, rank 0, world size 1 where no rank is named.
    Raises ValueError for an unknown argument or a number that is none."""
    unknown = set(arguments) - IDENTITY_FIELDS
    if unknown:
        raise ValueError(f"unknown identity {sorted(unknown)}; known are {sorted(IDENTITY_FIELDS)}")
    found: dict[str, Any] = {name: _number(environ, names) for name, names in _ENVIRONMENT.items()}
    found |= {name: _text(environ, names) for name, names in _TEXTS.items()}
    found |= {name: value for name, value in arguments.items() if value is not None}
    if found["rank"] is None:
        found["rank"] = 0
        if found["world_size"] is None:
            found["world_size"] = 1
    if found["rank"] < 0:
        raise ValueError(f"rank {found['rank']} is negative")
    found.setdefault("host", socket.gethostname())
    found["node"] = found["node"] or found["host"]
    found["job"] = found["job"] or _text(environ, ("SLURM_JOB_ID",)) or "default"
    if not found.get("generation"):
        found["generation"] = provisional_generation(environ)
    return Identity(**found)


def provisional_generation(environ: Mapping[str, str] = os.environ) -> str:
    """The generation until the ranks have agreed on one: MUSTER_GENERATION, else the launcher's run id and the start of the
    parent process (the launcher), which all ranks of a node share; with the launcher's restart count. Where the parent
    is not visible the start of this process stands in."""
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    suffix = "" if restart in ("", "0") else f".{restart}"
    given = environ.get("MUSTER_GENERATION")
    if given:
        return given + suffix
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    if run in ("", "none"):
        run = environ.get("SLURM_JOB_ID", "") or "run"
    ticks = start_ticks(os.getppid()) or start_ticks(os.getpid()) or 0
    return f"{run}-{(boot_id() or '')[:4]}{ticks:x}{suffix}"


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (field 22 of /proc/<pid>/stat); None if it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def boot_id() -> str | None:
    """The kernel's id of this boot; None where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _text(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[n] for n in names if environ.get(n)), None)


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    text = _text(environ, names)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{names[0]}={text!r} is not a number") from None
