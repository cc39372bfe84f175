"""`muster token`: make a bearer token for a gateway."""

from __future__ import annotations

from typing import Annotated

import typer

_HELP = """Make a bearer token. The secret is printed once; the gateway keeps only its SHA-256.

[bold]Example[/]

  muster token oncall --scope read --scope query
"""


def add_to(app: typer.Typer) -> None:
    app.command("token", help=_HELP)(token)


def token(
    name: Annotated[str, typer.Argument(help="Name of the token, for logs.")],
    scope: Annotated[list[str] | None, typer.Option(help="read, query or register; may be given several times.")] = None,
    job: Annotated[list[str] | None, typer.Option(help="Bind it to this job; may be given several times.")] = None,
) -> None:
    from muster.errors import ParameterError
    from muster.gateway.auth import SCOPES, digest_of, new_token

    scopes = scope or ["read"]
    for wanted in scopes:
        if wanted not in SCOPES:
            raise ParameterError(f"scope {wanted!r} is not known.", hint=f"There is {', '.join(SCOPES)}.")
    secret = new_token()
    print(f"# secret (not kept anywhere): {secret}")
    print("# for the file that MUSTER_GATEWAY_FILE names:")
    print("[[tokens]]")
    print(f'name = "{name}"')
    print(f'sha256 = "{digest_of(secret)}"')
    print(f"scopes = {scopes}".replace("'", '"'))
    if job:
        print(f"jobs = {job}".replace("'", '"'))
