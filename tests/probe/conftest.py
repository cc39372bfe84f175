"""A recorder without a session, in a directory of its own; recorded programs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.probe.reader import LifeDir, discover
from muster.probe.recorder import Recorder
from probe.kit import make_recorder


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = make_recorder(tmp_path)
    yield made
    made.close()


@pytest.fixture
def life(recorder: Recorder, tmp_path: Path) -> Iterator[LifeDir]:
    found = discover(tmp_path, "job")[0]
    yield found
    found.close()


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python program of its own, recorded under tmp_path/root; it is gone after the test."""

    def start(source: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        path = tmp_path / f"script{len(list(tmp_path.glob('script*.py')))}.py"
        path.write_text(textwrap.dedent(source))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")}
        process = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            env=clean | {"MUSTER_DIR": str(tmp_path / "root")} | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    started: list[subprocess.Popen[str]] = []
    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=10)
