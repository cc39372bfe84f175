"""Small pieces of text that every layer writes in the same way."""

from __future__ import annotations

from collections.abc import Iterable


def first_line(error: BaseException, limit: int = 1000) -> str:
    """What an error says, in one line of at most `limit` characters; its class where it says nothing.

    DuckDB cuts some messages within a character, which arrives as UnicodeDecodeError: then it is what was cut.
    """
    text = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
    lines = text.strip().splitlines()
    return lines[0].strip()[:limit] if lines else type(error).__name__


def number_list(values: Iterable[int]) -> str:
    """Whole numbers as `0, 3-5`, in order."""
    numbers = sorted({int(v) for v in values})
    parts: list[str] = []
    i = 0
    while i < len(numbers):
        j = i
        while j + 1 < len(numbers) and numbers[j + 1] == numbers[j] + 1:
            j += 1
        if j - i >= 2:
            parts.append(f"{numbers[i]}-{numbers[j]}")
        else:
            parts += [str(n) for n in numbers[i : j + 1]]
        i = j + 1
    return ", ".join(parts)


def rank_list(ranks: Iterable[int]) -> str:
    """`rank 2` or `ranks 0, 3-5`."""
    found = set(ranks)
    return f"{'rank' if len(found) == 1 else 'ranks'} {number_list(found)}"
