"""`muster queries`: the diagnoses that there are, what each is made of, and whether files of one's own are sound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.options import JsonOption

QueriesOption = Annotated[
    list[Path] | None,
    typer.Option("--queries", metavar="DIR", help="Directory of further diagnoses; may be given several times."),
]
_HELP = "The diagnoses: list them, show one, check files of your own. Nothing here asks a gateway."
_CHECK = """Check files of diagnoses: format, both languages, every statement planned over a job, every message.

Files lie over the packaged ones: one with the same id replaces it. Exits 0 when all are sound, else 3.

[bold]Examples[/]

  muster queries check
  muster queries check ./our-queries
"""


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help=_HELP, no_args_is_help=True)
    group.command("list", help="List the diagnoses: what each asks, and the tables that it reads.")(list_)
    group.command("show", help="Show one diagnosis: parameters, steps, checks, findings.")(show)
    group.command("check", help=_CHECK)(check)
    group.command("schema", help="Print the JSON schema of a file of diagnoses.")(schema)
    group.command("docs", help="Write the generated parts of a directory of documentation (schema, index, pages).")(docs)
    app.add_typer(group, name="queries")


def list_(
    queries: QueriesOption = None,
    lang: Annotated[str, typer.Option(help="Language of the texts: en or zh.")] = "en",
    json: JsonOption = False,
) -> None:
    from muster.cli.tables import print_rows
    from muster.diagnosis.catalogue import load

    found = [x.diagnosis for x in load(queries or ())]
    if json:
        _print_json([d.model_dump(mode="json", include={"id", "title", "asks", "requires", "related"}) for d in found])
        return
    columns = [("id", ""), ("asks", ""), ("reads", "")]
    print_rows(columns, [[d.id, d.asks.of("zh" if lang == "zh" else "en"), ", ".join(d.requires)] for d in found])


def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the diagnosis; `muster queries list` lists them.")],
    queries: QueriesOption = None,
    sql: Annotated[bool, typer.Option("--sql", help="Show the SQL of its steps too.")] = False,
    json: JsonOption = False,
) -> None:
    from muster.diagnosis.catalogue import load
    from muster.diagnosis.reference import page

    loaded = load(queries or ()).get(id)
    if json:
        _print_json(loaded.diagnosis.model_dump(mode="json"))
        return
    print(f"# {loaded.diagnosis.id}: {loaded.diagnosis.title.en}\n")
    print(page(loaded))
    if sql:
        for step in loaded.diagnosis.steps:
            print(f"-- {step.name}\n{step.sql}")


def check(
    directories: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR]...", help="Directories of diagnoses; none: the packaged ones.")
    ] = None,
) -> None:
    from muster.diagnosis.validate import validate

    report = validate(directories or ())
    for problem in report.problems:
        print(f"error  {problem.detail}")
    for remark in report.remarks:
        print(f"remark {remark}")
    print(f"{len(report.checked)} diagnoses with {report.statements} statements are sound, {len(report.problems)} are not")
    if report.problems:
        raise typer.Exit(3)


def schema() -> None:
    from muster.diagnosis.reference import schema_text

    print(schema_text(), end="")


def docs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the documentation.")],
    queries: QueriesOption = None,
) -> None:
    from muster.diagnosis.catalogue import load
    from muster.diagnosis.reference import files

    for path, text in files(load(queries or ()), directory).items():
        path.write_text(text, encoding="utf-8")
        print(path)


def _print_json(value: object) -> None:
    import orjson

    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
