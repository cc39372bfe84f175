"""`muster query` and `muster explain`: SQL over the whole job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.cli.options import (
    DEFAULT_GATEWAY,
    GatewayOption,
    JsonOption,
    ParamOption,
    TokenOption,
    pairs,
    typed,
)
from muster.cli.source import FromOption, asked
from muster.errors import ParameterError

_HELP = """Run one SELECT over all ranks of a job, as if all rows lay in one DuckDB.

Tables are those of `muster jobs JOB --tables`; every row has tag columns such as _rank and _host.

[bold]Examples[/]

  muster query my-job "SELECT _rank, max(global_step) FROM python.torch_step_timing GROUP BY ALL ORDER BY 1"
  muster query my-job "SELECT * FROM process.rank WHERE age_s > $s" --param s=10
  muster query --from ./my-job-hang "SELECT _rank, age_s FROM process.rank ORDER BY 2 DESC"
  echo "SELECT count(*) FROM python.comm_collective" | muster query my-job -
"""
_EXPLAIN = """Show how a query would be answered: waves, fragments, what runs on the probes and what here.

[bold]Example[/]

  muster explain my-job "SELECT _rank, median(step_duration_sec) FROM python.torch_step_timing GROUP BY ALL"
"""
Words = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB SQL", help="The job (not with --from), and one SELECT in DuckDB's dialect; - reads standard input."
    ),
]


def add_to(app: typer.Typer) -> None:
    app.command("query", help=_HELP)(query)
    app.command("explain", help=_EXPLAIN)(explain)


def query(
    words: Words,
    param: ParamOption = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds that the answer may take.")] = None,
    max_rows: Annotated[int | None, typer.Option(help="More rows than this are an error.")] = None,
    coordinator: Annotated[bool, typer.Option("--coordinator", help="Ask rank 0 only.")] = False,
    json: JsonOption = False,
    from_: FromOption = None,
    gateway: GatewayOption = DEFAULT_GATEWAY,
    token: TokenOption = None,
) -> None:
    job, sql = _job_and_sql(words, from_)
    with asked(gateway, token, from_, timeout=(deadline or 10.0) + 20.0) as client:
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
    words: Words,
    param: ParamOption = None,
    json: JsonOption = False,
    from_: FromOption = None,
    gateway: GatewayOption = DEFAULT_GATEWAY,
    token: TokenOption = None,
) -> None:
    job, sql = _job_and_sql(words, from_)
    with asked(gateway, token, from_) as client:
        found = client.explain(job, _sql(sql), typed(pairs(param)))
    if json:
        _print_json(found["plan"])
    else:
        print(found["tree"])


def _job_and_sql(words: list[str], bundle: Path | None) -> tuple[str | None, str]:
    """The arguments. Raises ParameterError: a job must be named where no bundle is."""
    if len(words) == 2:
        return words[0], words[1]
    if len(words) == 1 and bundle is not None:
        return None, words[0]
    raise ParameterError(
        f"{len(words)} arguments were given; JOB and SQL are wanted, or SQL alone with --from DIR.",
        hint="Put the SQL in quotes, as one argument.",
    )


def _sql(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _print_json(value: Any) -> None:
    import orjson

    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)
