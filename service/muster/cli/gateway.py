"""`muster gateway`: the HTTP service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_HELP = """Run the gateway: agents register here, and everybody asks here.

Every setting is also MUSTER_GATEWAY_<NAME> in the environment, or a key of the TOML or YAML file that
MUSTER_GATEWAY_FILE names; docs/settings.md lists all. It listens on loopback unless told otherwise; anywhere else it
needs tokens (`muster token`).

[bold]Examples[/]

  muster gateway --state ~/.local/state/muster.db
  MUSTER_GATEWAY_FILE=gateway.toml muster gateway --listen 0.0.0.0:8700
"""


def add_to(app: typer.Typer) -> None:
    app.command("gateway", help=_HELP)(gateway)


def gateway(
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen (127.0.0.1:8700).")] = None,
    state: Annotated[Path | None, typer.Option(help="SQLite file that keeps the roster and the last verdicts.")] = None,
    queries: Annotated[
        list[Path] | None, typer.Option(help="Directory of further diagnoses; may be given several times.")
    ] = None,
    probe_address: Annotated[
        list[str] | None,
        typer.Option(metavar="NET|HOST|.DOMAIN", help="Probes that may be called (default: loopback), repeatable."),
    ] = None,
    evaluate_s: Annotated[float | None, typer.Option(help="How often running jobs are evaluated (15); 0: never.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error (default: info).")] = None,
) -> None:
    from muster.gateway.serve import serve
    from muster.gateway.settings import load_settings

    serve(
        load_settings(
            listen=listen,
            state=state,
            queries=tuple(queries) if queries else None,
            probe_addresses=tuple(probe_address) if probe_address else None,
            evaluate_s=evaluate_s,
            log_level=log_level,
        )
    )
