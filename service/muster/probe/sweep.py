"""Removal of what jobs of long ago left in memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

from muster.probe import files
from muster.probe.lock import AGENT_LOCK, LockProbe
from muster.probe.reader import LifeDir, discover, jobs
from muster.tables import STEP_TIMING


def sweep(root: Path, older_s: float, *, keep: str) -> list[str]:
    """Remove the directories of jobs that nobody records or serves and whose last step, or start, is longer ago than
    `older_s` seconds. Returns their ids. The job `keep` is left alone, and whatever cannot be removed stays."""
    removed = []
    limit_ns = time.time_ns() - int(older_s * 1e9)
    for job in jobs(root):
        if job == keep or _served(root / job):
            continue
        lives = discover(root, job)
        try:
            old = all(_last_ns(life) < limit_ns for life in lives) and not any(life.alive() for life in lives)
        finally:
            for life in lives:
                life.close()
        if not lives:
            old = os.lstat(root / job).st_mtime_ns < limit_ns
        if old:
            try:
                top = files.open_root(root)
            except OSError:
                continue
            try:
                files.remove_tree(job, top)
                removed.append(job)
            except OSError:  # somebody else is at it, or a file of another user is in the way
                continue
            finally:
                os.close(top)
    return removed


def _served(directory: Path) -> bool:
    probe = LockProbe(directory / AGENT_LOCK)
    try:
        return probe.holder() is not None
    except OSError:
        return False
    finally:
        probe.close()


def _last_ns(life: LifeDir) -> int:
    """When a life last did anything that can be read: its newest step, else its start."""
    started = int(life.life.partition("-")[0])
    if started > time.time_ns() - 1_000_000_000:
        return started
    reader = life.reader(STEP_TIMING)
    ends = [e for e in reader.read_new().columns["end_ns"] if e is not None]
    reader.close()
    return max(ends, default=started)
