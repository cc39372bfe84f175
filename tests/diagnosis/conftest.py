"""A way to evaluate a synthetic history as the gateway would, over three nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from diagnosis.histories import Cluster, History
from muster.diagnosis.catalogue import DiagnosisCatalogue, load
from muster.diagnosis.evaluation import Evaluation
from muster.diagnosis.service import DiagnosisService

Evaluate = Callable[..., Evaluation]


@pytest.fixture(scope="session")
def catalogue() -> DiagnosisCatalogue:
    return load()


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture(scope="session")
def service(catalogue: DiagnosisCatalogue, cluster: Cluster) -> Iterator[DiagnosisService]:
    made = DiagnosisService(catalogue, cluster.federation)
    yield made
    made.close()


@pytest.fixture
def evaluate(service: DiagnosisService, cluster: Cluster) -> Evaluate:
    def run(history: History, **options: Any) -> Evaluation:
        view = cluster.view(history)
        given = {k: options.pop(k) for k in list(options) if k not in ("ids", "deadline_s", "min_coverage", "lang")}
        return anyio.run(lambda: service.evaluate(view, params=given, deadline_s=30, **options))

    return run
