"""`muster health`: the verdict on a job, as text and as exit code."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.cli.options import DEFAULT_GATEWAY, GatewayOption, JsonOption, ParamOption, TokenOption, pairs
from muster.cli.source import FromOption, OptionalJob, asked, job_of
from muster.errors import ParameterError

CODES = {"pass": 0, "warn": 1, "fail": 2, "unknown": 3}
_HELP = """Say whether a job is healthy, and if not, which rank, which host, and why.

[bold]Examples[/]

  muster health my-job
  muster health my-job --diagnosis all --lang zh
  muster health my-job --param step_window=100 --json | jq .findings
  muster health --from ./my-job-hang
  muster health my-job || scontrol requeue $SLURM_JOB_ID

Exit codes: 0 pass, 1 warn, 2 fail, 3 unknown and everything that is not a verdict (usage errors, no gateway).
"""


def add_to(app: typer.Typer) -> None:
    app.command("health", help=_HELP)(health)


def health(
    job: OptionalJob = None,
    diagnosis: Annotated[
        list[str] | None, typer.Option("--diagnosis", "-d", help="Diagnosis to run, or `all`; may be given several times.")
    ] = None,
    param: ParamOption = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds that the answer may take.")] = None,
    min_coverage: Annotated[float | None, typer.Option(help="Share of ranks that must answer.")] = None,
    lang: Annotated[str, typer.Option(help="Language of the texts: en or zh.")] = "en",
    watch: Annotated[float, typer.Option(metavar="SECONDS", help="Ask again every so many seconds, until Ctrl-C.")] = 0.0,
    json: JsonOption = False,
    from_: FromOption = None,
    queries: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="With --from: directory of further diagnoses, repeatable.")
    ] = None,
    gateway: GatewayOption = DEFAULT_GATEWAY,
    token: TokenOption = None,
) -> None:
    job = job_of(job, from_)
    if watch and from_ is not None:
        raise ParameterError("A bundle does not change.", hint="Leave --watch out.")
    if queries and from_ is None:
        raise ParameterError("--queries goes with --from.", hint="The gateway has its own: muster gateway --queries DIR.")
    options: dict[str, object] = {
        "diagnosis": diagnosis,
        "params": pairs(param),
        "deadline": deadline,
        "min_coverage": min_coverage,
        "lang": lang,
    }
    with asked(gateway, token, from_, timeout=(deadline or 10.0) + 20.0, queries=queries or ()) as client:
        while True:
            status = _once(client, job, options, json)
            if not watch:
                raise typer.Exit(CODES.get(status, 3))
            time.sleep(watch)


def _once(client: Any, job: str | None, options: dict[str, object], as_json: bool) -> str:
    import orjson

    if as_json:
        report = client.health(job, **options)
        print(orjson.dumps(report.body, option=orjson.OPT_INDENT_2).decode(), flush=True)
        return str(report.status)
    status, text = client.health_text(job, **options)
    print(text, end="", flush=True)
    return str(status)
