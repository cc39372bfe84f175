"""`muster jobs` and `muster nodes`: what the gateway knows of."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from muster.cli.options import DEFAULT_GATEWAY, GatewayOption, JsonOption, TokenOption
from muster.cli.source import FromOption, OptionalJob, asked, job_of, now_of
from muster.wording import number_list

_JOBS = """List jobs; with a JOB, its ranks (or its tables).

[bold]Examples[/]

  muster jobs
  muster jobs my-job
  muster jobs my-job --tables
  muster jobs --from ./my-job-hang --tables
"""
_NODES = """List the nodes of a job: agents, where they listen, which ranks they serve, when they last reported."""


def add_to(app: typer.Typer) -> None:
    app.command("jobs", help=_JOBS)(jobs)
    app.command("nodes", help=_NODES)(nodes)


def jobs(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Show this job's ranks.")] = None,
    tables: Annotated[bool, typer.Option("--tables", help="Show the job's tables instead.")] = False,
    json: JsonOption = False,
    from_: FromOption = None,
    gateway: GatewayOption = DEFAULT_GATEWAY,
    token: TokenOption = None,
) -> None:
    with asked(gateway, token, from_) as client:
        if job is None and not tables:
            _jobs(client.jobs(), now_of(client), json)
        elif tables:
            _tables(client.tables(job_of(job, from_)), json)
        else:
            _ranks(client.job(job), now_of(client), json)


def nodes(
    job: OptionalJob = None,
    json: JsonOption = False,
    from_: FromOption = None,
    gateway: GatewayOption = DEFAULT_GATEWAY,
    token: TokenOption = None,
) -> None:
    job = job_of(job, from_)
    with asked(gateway, token, from_) as client:
        found, now = client.nodes(job), now_of(client)
    columns = [("node", ""), ("addr", ""), ("kind", ""), ("alive", ""), ("ranks", ""), ("engine", ""), ("last seen", "")]
    rows = [
        [n["node"], n["addr"], n["kind"], n["alive"], number_list(n["ranks"]), n["engine"], _ago(n["last_seen"], now)]
        for n in found
    ]
    _show(found, columns, rows, json)


def _jobs(found: Any, now: datetime, as_json: bool) -> None:
    columns = [("job", ""), ("ranks", "INT"), ("statuses", ""), ("nodes", "INT"), ("generation", ""), ("last seen", "")]
    rows = [
        [j["job"], j["world_size"], _counts(j["statuses"]), j["nodes"], j["generation"], _ago(j["last_seen"], now)]
        for j in found
    ]
    _show(found, columns, rows, as_json)


def _ranks(found: Any, now: datetime, as_json: bool) -> None:
    columns = [("rank", "INT"), ("status", ""), ("host", ""), ("pid", "INT"), ("progress", ""), ("last seen", "")]
    rows = [
        [r["rank"], r["status"], r["host"], r["pid"], _seconds(r["last_progress_s"]), _ago(r["last_seen"], now)]
        for r in found["ranks"]
    ]
    _show(found, columns, rows, as_json)


def _tables(found: Any, as_json: bool) -> None:
    columns = [("table", ""), ("columns", "INT"), ("ranks", ""), ("meaning", "")]
    rows = [
        [t["table"], len(t["columns"]), "roster" if t["ranks"] is None else number_list(t["ranks"]), t["meaning"]]
        for t in found
    ]
    _show(found, columns, rows, as_json)


def _show(found: Any, columns: list[tuple[str, str]], rows: list[list[Any]], as_json: bool) -> None:
    if as_json:
        import orjson

        print(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
        return
    from muster.cli.tables import print_rows

    print_rows(columns, rows)


def _counts(statuses: dict[str, int]) -> str:
    return ", ".join(f"{n} {status}" for status, n in statuses.items())


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s ago"


def _ago(text: str | None, now: datetime) -> str:
    if text is None:
        return ""
    return f"{max(0.0, (now - datetime.fromisoformat(text)).total_seconds()):.0f} s ago"
