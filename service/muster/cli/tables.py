"""Rows as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL")
_PIPE_WIDTH = 4096  # a pipe has no width: nothing is cut


def print_rows(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """Print rows under (name, type) columns; numbers to the right, NULL as an empty cell."""
    console = Console() if Console().is_terminal else Console(width=_PIPE_WIDTH)
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, kind in columns:
        right = any(n in kind.upper() for n in _NUMBERS)
        table.add_column(escape(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(_text(value)) for value in row))
    console.print(table)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
