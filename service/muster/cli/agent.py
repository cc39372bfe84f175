"""`muster agent`: serves the ranks of one job on one node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_HELP = """Serve what the recorders of one job on this node have written.

`muster run` starts one by itself. Every setting is also MUSTER_AGENT_<NAME> in the environment, or a key of the TOML
file that MUSTER_AGENT_FILE names; docs/agent.md lists all.

[bold]Example[/]

  muster agent --job my-job --gateway http://head:8700 --listen 10.0.0.7:8701
"""


def add_to(app: typer.Typer) -> None:
    app.command("agent", help=_HELP)(agent)


def agent(
    job: Annotated[str | None, typer.Option(help="Job to serve (or MUSTER_JOB).")] = None,
    dir: Annotated[Path | None, typer.Option(help="Directory of the recorders (default: /dev/shm/muster-<uid>).")] = None,
    gateway: Annotated[str | None, typer.Option(help="Gateway to register with (or MUSTER_GATEWAY).")] = None,
    token: Annotated[str | None, typer.Option(help="Token for the gateway (or MUSTER_TOKEN).")] = None,
    node: Annotated[str | None, typer.Option(help="Name of this node (default: the scheduler's).")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen (default: 127.0.0.1:0).")] = None,
    advertise: Annotated[str | None, typer.Option(metavar="URL", help="How the gateway reaches this agent.")] = None,
    linger_s: Annotated[float | None, typer.Option(help="Seconds to serve on after the last rank ended.")] = None,
) -> None:
    from pydantic import ValidationError

    from muster.errors import ConfigError
    from muster.probe.agent import AgentSettings, serve

    flags: dict[str, Any] = {
        "job": job,
        "dir": dir,
        "gateway": gateway,
        "token": token,
        "node": node,
        "listen": listen,
        "advertise": advertise,
        "linger_s": linger_s,
    }
    try:
        settings = AgentSettings(**{k: v for k, v in flags.items() if v is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        text = str(first["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"{where + ': ' if where else ''}{text}", hint="See muster agent --help.") from None
    serve(settings)
