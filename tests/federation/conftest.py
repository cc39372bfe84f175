"""A job of six ranks on three nodes, whose shards are served over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from federation.nodes_over_http import Nodes


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes() as found:
        yield found
