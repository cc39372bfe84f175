"""`muster health`: the verdict on a job, as text and as exit code."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from muster.cli.options import DEFAULT_GATEWAY, GatewayOption, JobArgument, JsonOption, ParamOption, TokenOption, pairs

CODES = {"pass": 0, "warn": 1, "fail": 2, "unknown": 3}
_HELP = """Say whether a job is healthy, and if not, which rank, which host, and why.

[bold]Examples[/]

  muster health my-job
  muster health my-job --diagnosis all --lang zh
  muster health my-job --param step_window=100 --json | jq .findings
  muster health my-job || scontrol requeue $SLURM_JOB_ID

Exit codes: 0 pass, 1 warn, 2 fail, 3 unknown and everything that is not a verdict (usage errors, no gateway).
"""


def add_to(app: typer.Typer) -> None:
    app.command("health", help=_HELP)(health)


def health(
    job: JobArgument,
    diagnosis: Annotated[
        list[str] | None, typer.Option("--diagnosis", "-d", help="Diagnosis to run, or `all`; may be given several times.")
    ] = None,
    param: ParamOption = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds that the answer may take.")] = None,
    min_coverage: Annotated[float | None, typer.Option(help="Share of ranks that must answer.")] = None,
    lang: Annotated[str, typer.Option(help="Language of the texts: en or zh.")] = "en",
    watch: Annotated[float, typer.Option(metavar="SECONDS", help="Ask again every so many seconds, until Ctrl-C.")] = 0.0,
    json: JsonOption = False,
    gateway: GatewayOption = DEFAULT_GATEWAY,
    token: TokenOption = None,
) -> None:
    from muster.client import Client

    options: dict[str, object] = {
        "diagnosis": diagnosis,
        "params": pairs(param),
        "deadline": deadline,
        "min_coverage": min_coverage,
        "lang": lang,
    }
    with Client(gateway, token, timeout=(deadline or 10.0) + 20.0) as client:
        while True:
            status = _once(client, job, options, json)
            if not watch:
                raise typer.Exit(CODES.get(status, 3))
            time.sleep(watch)


def _once(client: object, job: str, options: dict[str, object], as_json: bool) -> str:
    import orjson

    from muster.client import Client

    assert isinstance(client, Client)
    if as_json:
        report = client.health(job, **options)  # type: ignore[arg-type]
        print(orjson.dumps(report.body, option=orjson.OPT_INDENT_2).decode(), flush=True)
        return report.status
    status, text = client.health_text(job, **options)
    print(text, end="", flush=True)
    return status
