"""`muster run`: a training command whose ranks are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.options import DEFAULT_GATEWAY

_HELP = """Run a training command and record all its local ranks, without a change to its code.

Starts an agent for the job on this node if none is there. Exit code and signals are the command's own. When the command
ends badly, what was recorded is copied into a directory and its name is printed.

[bold]Examples[/]

  muster run --job my-job -- torchrun --nproc-per-node 8 train.py
  muster run --job my-job --gateway http://head:8700 -- python train.py
  eval "$(muster run --job my-job --print-env)"   # the same by environment, for launchers of your own
"""


def add_to(app: typer.Typer) -> None:
    app.command("run", help=_HELP, context_settings={"ignore_unknown_options": False})(run)


def run(
    job: Annotated[str, typer.Option("--job", "-j", envvar="MUSTER_JOB", help="Id of the job.")],
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND…", help="What to run.")] = None,
    gateway: Annotated[
        str, typer.Option(envvar="MUSTER_GATEWAY", help="Gateway that the agent registers with; '' for none.")
    ] = DEFAULT_GATEWAY,
    token: Annotated[str | None, typer.Option(envvar="MUSTER_TOKEN", help="Token for the gateway.")] = None,
    dir: Annotated[Path | None, typer.Option(envvar="MUSTER_DIR", help="Directory of the recorders.")] = None,
    node: Annotated[str | None, typer.Option(envvar="MUSTER_NODE", help="Name of this node.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the agent listens.")] = None,
    collect: Annotated[
        str | None, typer.Option(envvar="MUSTER_COLLECT", help="Collectors, or none (default: torch).")
    ] = None,
    agent: Annotated[bool, typer.Option("--agent/--no-agent", help="Start an agent if there is none.")] = True,
    linger_s: Annotated[float, typer.Option(help="Seconds that the agent serves on after the last rank ended.")] = 3600.0,
    bundle: Annotated[bool, typer.Option("--bundle/--no-bundle", help="Keep what was recorded on a bad end.")] = True,
    bundle_dir: Annotated[Path | None, typer.Option(help="Where (default: ./muster-<job>-<time>).")] = None,
    print_env: Annotated[bool, typer.Option("--print-env", help="Print the environment instead of running.")] = False,
) -> None:
    from muster.probe import launch

    options = launch.RunOptions(
        job=job,
        command=tuple(command or ()),
        gateway=gateway or None,
        token=token,
        directory=dir,
        node=node,
        listen=listen,
        collect=collect,
        agent=agent,
        agent_options=("--linger-s", str(linger_s)),
        bundle=bundle,
        bundle_dir=bundle_dir,
    )
    if print_env:
        print(launch.print_env(options), end="")
        return
    launch.exit_with(launch.run(options))
