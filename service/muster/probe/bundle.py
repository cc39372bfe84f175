"""What `muster run` leaves when a job ends badly: a copy of the recorders' files and a `job.json` that describes them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from muster.probe.reader import LifeDir, discover
from muster.tables import PROCESS_EXIT

BUNDLE_FORMAT = 1


def write_bundle(
    job: str,
    roots: Iterable[Path],
    target: Path | None,
    command: Sequence[str],
    code: int,
    started: float,
    ended: float,
) -> Path | None:
    """Copy the newest life of every rank into a new directory and return it; None when nothing was recorded.

    `target` None means ./muster-<job>-<time>. `code`: exit code of the command, negative for a signal. Times are seconds
    since the epoch; lives that began before `started` are of an earlier run and left out. Raises OSError if the directory
    cannot be written.
    """
    newest: dict[int, LifeDir] = {}
    for root in roots:
        for life in discover(root, job):
            if int(life.life.partition("-")[0]) >= started * 1e9:
                newest[life.rank] = life
    if not newest:
        return None
    where = target or Path(f"muster-{job}-{datetime.fromtimestamp(ended, UTC):%Y%m%dT%H%M%SZ}")
    where.mkdir(parents=True, mode=0o700, exist_ok=True)
    roster = []
    for rank, life in sorted(newest.items()):
        roster.append(_describe(life))
        shutil.copytree(life.path, where / "rings" / f"rank-{rank}" / life.life, dirs_exist_ok=True)
    generations = sorted({r["generation"] for r in roster if r.get("generation")})
    (where / "job.json").write_text(
        json.dumps(
            {
                "format": BUNDLE_FORMAT,
                "kind": "rings",
                "job": job,
                "generation": generations[-1] if generations else None,
                "world_size": max((r.get("world_size") or 0 for r in roster), default=0) or None,
                "roster": roster,
                "exit": {
                    "code": code if code >= 0 else None,
                    "signal": -code if code < 0 else None,
                    "command": os.path.basename(command[0]),
                    "started": _iso(started),
                    "ended": _iso(ended),
                },
            },
            indent=2,
        )
        + "\n"
    )
    return where.absolute()


def _describe(life: LifeDir) -> dict[str, Any]:
    """The roster's entry of one rank: its meta, whether it still runs, and how it ended if it said so."""
    meta = life.meta()
    entry: dict[str, Any] = {"rank": life.rank, "life": life.life, "alive": life.alive()}
    if meta is not None:
        for name in (
            "generation", "generation_final", "world_size", "local_rank", "local_world_size", "node_rank", "role",
            "role_name", "role_rank", "role_world_size", "host", "node", "pid", "started_ns", "step_source",
        ):  # fmt: skip
            entry[name] = getattr(meta, name)
    reader = life.reader(PROCESS_EXIT)
    ends = reader.read_new()
    reader.close()
    if ends.rows:
        entry["exit"] = {name: values[-1] for name, values in ends.columns.items()}
    entry["errors"] = dict(life.errors())
    life.close()
    return entry


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
