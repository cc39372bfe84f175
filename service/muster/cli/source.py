"""Whom a command that reads asks: a gateway, or a bundle on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.errors import ParameterError

if TYPE_CHECKING:
    from muster.bundle.offline import Offline
    from muster.client import Client

FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="DIR", help="Ask the bundle in this directory (of muster record or import), no gateway."
    ),
]
OptionalJob = Annotated[
    str | None, typer.Argument(metavar="JOB", help="Id of the job; `muster jobs` lists them. May be left out with --from.")
]


@contextmanager
def asked(
    gateway: str, token: str | None, bundle: Path | None, *, timeout: float = 30.0, queries: Sequence[Path] = ()
) -> Iterator[Any]:
    """A client of the gateway, or of the bundle where one is named: both have the same methods."""
    if bundle is not None:
        from muster.bundle.offline import Offline

        with Offline(bundle, queries=queries) as offline:
            yield offline
        return
    from muster.client import Client

    with Client(gateway, token, timeout=timeout) as client:
        yield client


def now_of(client: Client | Offline) -> datetime:
    """The moment as of which a client answers: ages are told from it."""
    now = getattr(client, "now", None)
    return now if isinstance(now, datetime) else datetime.now(UTC)


def job_of(job: str | None, bundle: Path | None) -> str | None:
    """The job that was named. Raises ParameterError where there must be one."""
    if job is None and bundle is None:
        raise ParameterError("JOB is missing.", hint="Name a job, or a bundle with --from DIR; `muster jobs` lists jobs.")
    return job
