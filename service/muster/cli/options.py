"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from muster.errors import ParameterError

GatewayOption = Annotated[
    str, typer.Option("--gateway", "-g", envvar="MUSTER_GATEWAY", help="URL of the gateway.", show_envvar=True)
]
TokenOption = Annotated[str | None, typer.Option("--token", envvar="MUSTER_TOKEN", help="Bearer token.", show_envvar=True)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
ParamOption = Annotated[
    list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter; may be given several times.")
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job; `muster jobs` lists them.")]
DEFAULT_GATEWAY = "http://127.0.0.1:8700"


def pairs(values: Sequence[str] | None) -> Mapping[str, str]:
    """`NAME=VALUE` options as a mapping. Raises ParameterError for what is none."""
    found: dict[str, str] = {}
    for text in values or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ParameterError(f"--param {text!r} is not NAME=VALUE.", hint="For example --param step_window=100.")
        found[name] = value
    return found


def typed(values: Mapping[str, str]) -> dict[str, Any]:
    """Values as JSON has them where they read as such: numbers, true, false, null; else texts."""
    import orjson

    found: dict[str, Any] = {}
    for name, text in values.items():
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            value = text
        found[name] = text if isinstance(value, list | dict) else value
    return found
