"""The typer app, and the exit codes: whatever is not a verdict exits 3, usage errors and crashes included."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.markup import escape

from muster import __version__
from muster.cli import agent, demo, gateway, health, import_, jobs, queries, query, record, run, token
from muster.errors import MusterError

NO_VERDICT = 3
INTERRUPTED = 130
EXIT_CODES = "Exit codes: 0 pass, 1 warn, 2 fail, 3 unknown and everything that is not a verdict."


def build() -> typer.Typer:
    """All commands."""
    app = typer.Typer(
        name="muster",
        help="Is this distributed training job healthy, and if not, which rank, which host, and why?",
        epilog=f"Try it without anything else: muster demo --fault straggler:2. {EXIT_CODES}",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    for module in (demo, run, health, query, jobs, record, import_, queries, gateway, agent, token):
        module.add_to(app)
    app.command("version", help="Print the version.")(_version)
    return app


def run_cli(args: Sequence[str]) -> int:
    """Run one command line and return its exit code. Raises nothing."""
    console = Console(stderr=True, soft_wrap=True)
    try:
        command = typer.main.get_command(build())
        code = command.main(list(args) or ["--help"], prog_name="muster", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except MusterError as error:
        say_error(console, error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if not _show_usage(error):
            traceback.print_exc()
            console.print("[red]error[/] this is a bug in muster")
    return NO_VERDICT


def _show_usage(error: Exception) -> bool:
    """Say what is wrong with the command line, if that is what it is. Typer brings its own copy of click, whose classes
    have no public name: they are known by their methods."""
    show = getattr(error, "show", None)
    if not callable(show) or not hasattr(error, "exit_code"):
        return False
    show()
    return True


def say_error(console: Console, error: MusterError) -> None:
    """An error in one line, with its hint in a second."""
    place = f" (line {error.position[0]}, column {error.position[1]})" if error.position else ""
    console.print(f"[red]error[/] {error.code}: {escape(error.detail)}{place}", highlight=False)
    if error.hint:
        console.print(f"[dim]hint[/]  {escape(error.hint)}", highlight=False)


def _version() -> None:
    print(__version__)
