"""The command itself: start the stage, inject the fault, ask until the gateway can tell, print what it says."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.demo.fault import Fault

if TYPE_CHECKING:
    from rich.console import Console

    from muster.cli.demo.stage import Stage

WARM_STEPS = 60
_HELP = """See Muster at work: a gateway, an agent, and real processes that train in lock step over sockets.

A fault is injected into one of them, and the gateway is asked over HTTP what is wrong, as on-call would. No torch, no
GPU, no network but loopback; everything is removed at the end.

[bold]Examples[/]

  muster demo --fault straggler:2
  muster demo --ranks 8 --fault hang:5
  muster demo --fault kill:1 --json | jq .summary
  muster demo --fault straggler:0 --keep     # stays up, so that you can ask it yourself

Exit codes: 0 pass, 1 warn, 2 fail, 3 unknown and everything that is not a verdict.
"""


def add_to(app: typer.Typer) -> None:
    app.command("demo", help=_HELP)(demo)


def demo(
    ranks: Annotated[int, typer.Option(min=2, max=64, help="Processes of the job.")] = 4,
    fault: Annotated[str, typer.Option(help="none, straggler:RANK, hang:RANK or kill:RANK.")] = "none",
    duration: Annotated[float, typer.Option(min=5, max=600, help="Seconds to wait for a conclusion at most.")] = 30.0,
    json: Annotated[bool, typer.Option("--json", help="Print the health answer and nothing else.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up after the verdict, until Ctrl-C.")] = False,
) -> None:
    from rich.console import Console

    from muster.cli.demo.stage import Stage
    from muster.cli.health import CODES

    injected = Fault.parse(fault, ranks)
    console = Console(stderr=True, quiet=json)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with Stage(ranks, injected) as stage:
        end = time.monotonic() + duration
        body, text = _conclude(stage, console, end)
        _print(console, stage, body, text, as_json=json, keep=keep)
        if keep:
            _stay(console)
    raise typer.Exit(CODES.get(body["status"], 3))


def _conclude(stage: Stage, console: Console, end: float) -> tuple[dict[str, Any], str]:
    """The first answer that concludes: a fault is found, or a healthy job has been watched long enough."""
    from muster.cli.demo.stage import JOB

    steps = WARM_STEPS * (2 if stage.fault.kind == "none" else 1)
    with console.status("starting") as status:
        while (step := stage.step()) < steps and time.monotonic() < end:
            stage.check()
            status.update(f"{stage.ranks} ranks train in lock step: step {step}")
            time.sleep(0.2)
        stage.strike()
        while True:
            status.update(f"{stage.fault.says}; asking GET {stage.url}/jobs/{JOB}/health")
            report = stage.client.health(JOB)
            found = report.status in ("warn", "fail") or stage.fault.kind == "none"
            if found or time.monotonic() >= end:
                _, text = stage.client.health_text(JOB)
                return dict(report.body), text
            stage.check()
            time.sleep(0.5)


def _print(console: Console, stage: Stage, body: dict[str, Any], text: str, *, as_json: bool, keep: bool) -> None:
    import orjson

    from muster.cli.demo.stage import JOB

    if as_json:
        print(orjson.dumps(body).decode(), flush=True)
        return
    print(text, flush=True)
    asked = stage.url if keep else "http://127.0.0.1:8700"
    console.print(f"[dim]What was done:[/] {stage.fault.says}.")
    console.print("[dim]Ask yourself:[/]" if keep else "[dim]The same on a job of yours (or with --keep on this one):[/]")
    console.print(f"  curl --fail-with-body {asked}/jobs/{JOB}/health", highlight=False, soft_wrap=True)
    console.print(
        f"  muster query {JOB} --gateway {asked} "
        '"SELECT _rank, median(comm_blocked_ms) FROM python.torch_step_timing GROUP BY ALL ORDER BY 1"',
        highlight=False,
        soft_wrap=True,
    )


def _stay(console: Console) -> None:
    console.print("Ctrl-C ends it.")
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        pass
