"""What the tests of the recorder share: a recorder without a session, and reading as an agent does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.probe.errorlog import ErrorLog
from muster.probe.identity import identity
from muster.probe.life import Life
from muster.probe.reader import LifeDir
from muster.probe.recorder import Recorder


def make_recorder(root: Path, *, job: str = "job", ring_bytes: int = 1 << 20, **who: Any) -> Recorder:
    given = {"rank": 0, "world_size": 4} | who
    life_identity = identity({"job": job, **given}, {})
    return Recorder(Life([root], life_identity, time.time_ns(), ring_bytes, ErrorLog()), life_identity)


def rows(life: LifeDir, table: str) -> list[dict[str, Any]]:
    """All rows of a table that its ring still holds."""
    reader = life.reader(table)
    batch = reader.read_new()
    reader.close()
    return [dict(zip(batch.columns, values, strict=True)) for values in zip(*batch.columns.values(), strict=True)]


def eventually(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of the condition. Fails when it does not come in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("did not happen in time")
