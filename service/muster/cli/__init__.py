"""The command `muster`. Commands read options and call what does the work; imports that cost are made when needed."""

from __future__ import annotations

import sys

from muster.cli.app import run_cli


def main() -> None:
    """Run the command line of this process and exit with its code."""
    sys.exit(run_cli(sys.argv[1:]))
