"""Settings that all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    max_examples=60,
)
# A change is judged by the same examples each time; people and the deep run look for new ones.
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, database=None)
settings.register_profile("deep", parent=settings.get_profile("default"), max_examples=3000)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default")
settings.load_profile(PROFILE)


def pytest_report_header(config: pytest.Config) -> str:
    """Which generated examples this run sees, and how to see them again."""
    if settings().derandomize:
        return f"generated examples: profile {PROFILE}, the same in every run (no seed)"
    seed = config.getoption("--hypothesis-seed")
    again = f"seed {seed}" if seed else "new ones in every run; a failure prints how to repeat it"
    return f"generated examples: profile {PROFILE}, {again}"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own MUSTER_* or launcher variables must not decide what a test sees."""
    for name in list(os.environ):
        if name.startswith("MUSTER_"):
            monkeypatch.delenv(name)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURMD_NODENAME", "NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
