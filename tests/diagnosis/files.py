"""A service over diagnoses that a test writes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import yaml

from diagnosis.histories import Cluster, History
from muster.diagnosis.catalogue import load
from muster.diagnosis.evaluation import Evaluation
from muster.diagnosis.service import DiagnosisService

Ask = Callable[..., Evaluation]


@contextmanager
def service_over(files: Sequence[Mapping[str, Any]], directory: Path) -> Iterator[tuple[DiagnosisService, Cluster]]:
    """The packaged diagnoses and these, over shards in this process."""
    for content in files:
        (directory / f"{content['id']}.yaml").write_text(yaml.safe_dump(dict(content), allow_unicode=True))
    cluster = Cluster()
    service = DiagnosisService(load([directory]), cluster.federation)
    try:
        yield service, cluster
    finally:
        service.close()


def asking(service: DiagnosisService, cluster: Cluster) -> Ask:
    """`ask(history, *ids, **options)`."""

    def ask(history: History, *ids: str, **options: Any) -> Evaluation:
        view = cluster.view(history)
        return anyio.run(lambda: service.evaluate(view, ids, **options))

    return ask
