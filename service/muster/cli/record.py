"""`muster record`: a live job as a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from muster.cli.options import DEFAULT_GATEWAY, GatewayOption, JobArgument, JsonOption, TokenOption

_HELP = """Record a live job into a directory that can be asked without servers: what on-call attaches to a ticket.

Takes the roster and every table of every rank as of one moment, through the gateway, or with --agent from the agents
themselves. What could not be had is said, and kept in the bundle: answers from it never look more complete.

[bold]Examples[/]

  muster record my-job --out ./my-job-hang
  muster health --from ./my-job-hang
  muster record my-job --out ./d --agent http://n0:8701 --agent http://n1:8701

Exit codes: 0 all of it, 1 recorded in part, 3 nothing recorded.
"""


def add_to(app: typer.Typer) -> None:
    app.command("record", help=_HELP)(record)


def record(
    job: JobArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Directory to make.")],
    agent: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Ask this agent, not the gateway; may be given several times.")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Record only this table; may be given several times.")
    ] = None,
    max_rows: Annotated[int, typer.Option(help="Newest rows of each rank and table.", min=1, max=1_000_000)] = 50_000,
    max_mb: Annotated[int, typer.Option(help="Size of the bundle in MB.", min=1)] = 4096,
    max_s: Annotated[float, typer.Option(help="Seconds that it may take.", min=0.1)] = 300.0,
    json: JsonOption = False,
    gateway: GatewayOption = DEFAULT_GATEWAY,
    token: TokenOption = None,
) -> None:
    import anyio

    from muster.bundle.agents import AgentSource
    from muster.bundle.record import RecordLimits
    from muster.bundle.record import record as record_job
    from muster.bundle.sources import GatewaySource, JobSource, http_client
    from muster.cli.progress import progress

    limits = RecordLimits(max_rows, max_mb << 20, max_s)

    async def run() -> Any:
        async with http_client(token) as client:
            source: JobSource = AgentSource(job, agent, client, token) if agent else GatewaySource(job, gateway, client)
            with progress(f"recording {job}") as step:
                return await record_job(source, out, tables=table or None, limits=limits, progress=step)

    say(anyio.run(run), out, json)


def say(manifest: Any, out: Path, as_json: bool) -> None:
    """What is in a bundle that was made; exits 1 where it is not all."""
    rows = sum(f.rows for t in manifest.tables for f in t.files)
    size = sum(f.bytes for t in manifest.tables for f in t.files)
    there = sum(1 for r in manifest.ranks if r.served_by is not None and "*" not in r.gaps)
    if as_json:
        import orjson

        body = {
            "out": str(out), "job": manifest.job, "world_size": manifest.world_size, "ranks": there, "rows": rows,
            "bytes": size, "complete": manifest.complete, "notes": manifest.notes,
        }  # fmt: skip
        print(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
    else:
        print(f"{out}: job {manifest.job}, {there} of {manifest.world_size} ranks, {rows:,} rows, {size / 1e6:.1f} MB")
        for note in manifest.notes:
            print(f"not in it: {note}")
        print(f"Ask it: muster health --from {out}")
    if not manifest.complete:
        raise typer.Exit(1)
