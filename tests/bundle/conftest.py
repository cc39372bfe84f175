"""A job of four ranks on two nodes that has ended well, and a bundle of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bundle.live import LiveJob


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveJob]:
    """Four ranks of 20 steps each, all ended; the agents and the gateway serve on."""
    job = LiveJob(tmp_path_factory.mktemp("live"), 4)
    try:
        for rank in range(4):
            job.rank(f"n{rank // 2}", rank)
        job.serve("n0")
        job.serve("n1")
        yield job
    finally:
        job.close()


@pytest.fixture(scope="module")
def bundle(ended: LiveJob, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That job, recorded through its gateway. Tests that change it copy it first."""
    out = tmp_path_factory.mktemp("recorded") / "b"
    manifest = ended.record(out)
    assert manifest.complete, manifest.notes
    return out
