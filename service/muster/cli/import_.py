"""`muster import`: what others left behind as a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from muster.cli.options import JsonOption

_HELP = """Make a bundle of what others left behind, to be asked with --from.

SOURCE is what `muster run` left when a job ended badly (one directory for each node), a directory of
<schema>.<table>.parquet files, a folder of dumps of torch's flight recorder, the parquet file of a public straggler trace
(its YAML file beside it), or a bundle: of a damaged one what is sound is kept.

[bold]Examples[/]

  muster import ./muster-my-job-20260101T000000Z --out ./my-job
  muster import ./dumps --out ./my-job --job my-job
  muster health --from ./my-job

Exit codes: 0 all of it, 1 imported in part, 3 nothing imported.
"""


def add_to(app: typer.Typer) -> None:
    app.command("import", help=_HELP)(import_)


def import_(
    source: Annotated[list[Path], typer.Argument(metavar="SOURCE…", help="What to import.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Directory to make.")],
    job: Annotated[str | None, typer.Option(help="Id of the job (default: by the name of SOURCE).")] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="What SOURCE is: rings, parquet, flight_recorder, trace, bundle (default: as found)."),
    ] = None,
    meta: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML file of a trace (default: beside it).")] = None,
    json: JsonOption = False,
) -> None:
    from muster.bundle.importing import Kind, import_bundle
    from muster.cli.record import say
    from muster.errors import ParameterError

    known: tuple[Any, ...] = get_args(Kind)
    if kind is not None and kind not in known:
        raise ParameterError(f"--kind {kind!r} is not known.", hint=f"There is {', '.join(known)}.")
    say(import_bundle(source, out, kind=kind, job=job, meta=meta), out, json)  # type: ignore[arg-type]
