"""`muster query` and `muster explain`: SQL over the whole job."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from muster.cli.options import (
    DEFAULT_GATEWAY,
    GatewayOption,
    JobArgument,
    JsonOption,
    ParamOption,
    TokenOption,
    pairs,
    typed,
)

_HELP = """Run one SELECT over all ranks of a job, as if all rows lay in one DuckDB.

Tables are those of `muster jobs JOB --tables`; every row has tag columns such as _rank and _host.

[bold]Examples[/]

  muster query my-job "SELECT _rank, max(global_step) FROM python.torch_step_timing GROUP BY ALL ORDER BY 1"
  muster query my-job "SELECT * FROM process.rank WHERE age_s > $s" --param s=10
  echo "SELECT count(*) FROM python.comm_collective" | muster query my-job -
"""
_EXPLAIN = """Show how a query would be answered: waves, fragments, what runs on the probes and what here.

[bold]Example[/]

  muster explain my-job "SELECT _rank, median(step_duration_sec) FROM python.torch_step_timing GROUP BY ALL"
"""
SqlArgument = Annotated[str, typer.Argument(metavar="SQL", help="One SELECT in DuckDB's dialect; - reads standard input.")]


def add_to(app: typer.Typer) -> None:
    app.command("query", help=_HELP)(query)
    app.command("explain", help=_EXPLAIN)(explain)


def query(
    job: JobArgument,
    sql: SqlArgument,
    param: ParamOption = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds that the answer may take.")] = None,
    max_rows: Annotated[int | None, typer.Option(help="More rows than this are an error.")] = None,
    coordinator: Annotated[bool, typer.Option("--coordinator", help="Ask rank 0 only.")] = False,
    json: JsonOption = False,
    gateway: GatewayOption = DEFAULT_GATEWAY,
    token: TokenOption = None,
) -> None:
    from muster.client import Client

    with Client(gateway, token, timeout=(deadline or 10.0) + 20.0) as client:
        found = client.query(
            job,
            _sql(sql),
            typed(pairs(param)),
            deadline=deadline,
            max_rows=max_rows,
            use_global=False if coordinator else None,
        )
    if json:
        _print_json(
            {
                "columns": found.columns,
                "rows": found.rows,
                "coverage": found.coverage,
                "elapsed_ms": found.elapsed_ms,
            }
        )
        return
    from muster.cli.tables import print_rows

    print_rows([(c["name"], c["type"]) for c in found.columns], found.rows)
    coverage = found.coverage
    note = "" if coverage["complete"] else " [yellow](incomplete: see --json for who is missing)[/]"
    _console().print(
        f"{len(found.rows)} rows, {coverage['answered']} of {coverage['world_size']} ranks, {found.elapsed_ms:.0f} ms{note}"
    )


def explain(
    job: JobArgument,
    sql: SqlArgument,
    param: ParamOption = None,
    json: JsonOption = False,
    gateway: GatewayOption = DEFAULT_GATEWAY,
    token: TokenOption = None,
) -> None:
    from muster.client import Client

    with Client(gateway, token) as client:
        found = client.explain(job, _sql(sql), typed(pairs(param)))
    if json:
        _print_json(found["plan"])
    else:
        print(found["tree"])


def _sql(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _print_json(value: Any) -> None:
    import orjson

    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)
