"""What routes share: the parts of the app, and the checks that come first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Path, Request

from muster.errors import JobNotFound
from muster.model import JOB_ID

if TYPE_CHECKING:
    from muster.gateway.app import Parts


def parts_of(request: Request) -> Parts:
    return cast("Parts", request.app.state.parts)


def job_id(job: Annotated[str, Path(description="Id of the job.")]) -> str:
    """The job of the path. Raises JobNotFound for what cannot be one."""
    if not JOB_ID.fullmatch(job):
        raise JobNotFound("That is not the id of a job.", hint=f"Job ids match {JOB_ID.pattern}.")
    return job


JobPath = Annotated[str, Depends(job_id)]


async def may_read(request: Request, job: JobPath) -> None:
    parts_of(request).auth.check(request, "read", job)


async def may_query(request: Request, job: JobPath) -> None:
    parts_of(request).auth.check(request, "query", job)


async def may_register(request: Request, job: JobPath) -> None:
    parts_of(request).auth.check(request, "register", job)


async def may_read_any(request: Request) -> None:
    """For what belongs to no job: any token with the scope read."""
    auth = parts_of(request).auth
    auth.check_any(request, "read")
