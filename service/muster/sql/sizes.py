"""How many bytes a function may make of its arguments: the estimates that `growth` adds up."""

from __future__ import annotations

import re
import re._parser as regex  # type: ignore[import-not-found]
from collections.abc import Sequence

from muster.sql.engine_parser import Node
from muster.sql.functions import BOUND, BOUNDED, functions, words

SMALL = 16
"""Bytes that a number counts."""
WIDTH = 40
"""Columns that a stored table counts."""
MANY = 20
"""By how much a value that collects rows is larger than one of its parts: a nominal figure; how many rows there are is the
engine's business, and counted by it."""

_CONCATENATES = words("|| concat concat_ws list_concat array_concat list_cat array_cat")
_ESCAPES = {
    **dict.fromkeys(("hex", "to_hex", "to_base64", "base64", "upper", "lower", "ucase", "lcase"), 2),
    **dict.fromkeys(("to_json", "array_to_json", "row_to_json", "json", "json_quote"), 2),
    **dict.fromkeys(("url_encode", "nfc_normalize"), 3),
    **dict.fromkeys(("regexp_escape", "json_pretty"), 4),
    **dict.fromkeys(("bin", "to_binary"), 8),
}
_SPLITS = words(
    """string_split str_split string_to_array split string_split_regex str_split_regex regexp_split_to_array
    regexp_extract_all"""
)
_SHORTENS = {"left": 1, "right": 1, "left_grapheme": 1, "right_grapheme": 1} | {
    "substr": 2, "substring": 2, "substring_grapheme": 2
}  # fmt: skip
_PICKS = words("coalesce ifnull if greatest least nullif try")
_SELECTS = words("list_select array_select")
_JOINS = words(
    "array_to_string array_to_string_comma_default list_aggregate list_aggr array_aggregate array_aggr aggregate"
)
PAIRS = words("levenshtein editdist3 damerau_levenshtein jaccard jaro_similarity jaro_winkler_similarity")
REDUCES = words("list_reduce array_reduce reduce")
_COLLECTS = words(
    """list array_agg string_agg group_concat listagg histogram histogram_exact json_group_array json_group_object
    json_group_structure variant_group_array variant_group_object map_agg lttb approx_top_k"""
)
_REFERENCES = tuple(f"\\{i}" for i in range(10))
_TOPS = words("min max arg_min arg_max min_by max_by argmin argmax")
"""Aggregates that collect where they are given a number."""


def function_name(node: Node) -> str:
    """The name of a call in lower case, or the type of an operator."""
    return str(node.get("function_name") or node.get("type") or "").lower()


def arguments_of(node: Node) -> list[Node]:
    return [a.get("expression", a) for a in node.get("arguments") or node.get("children") or () if isinstance(a, dict)]


def size_of(node: Node, arguments: Sequence[Node], sizes: Sequence[int], rest: Sequence[int]) -> int:
    """Bytes of what an expression makes of arguments of these sizes; `rest` are the sizes of its other parts.

    For functions that compare every character of one text with every one of another, the number of comparisons.
    """
    kind, name = node.get("class"), function_name(node)
    if kind == "CASE":
        return max(rest, default=SMALL)
    if kind == "CAST":
        return max([*sizes, *rest], default=SMALL)
    if kind in ("COMPARISON", "CONJUNCTION", "BETWEEN") or (kind == "OPERATOR" and "NULL" in name.upper()):
        return SMALL
    total = sum(sizes)
    if name in PAIRS and len(sizes) > 1:
        return sizes[0] * sizes[1] // 8
    if name in _COLLECTS:
        return total * MANY
    if name in functions().small:
        return SMALL
    if name in ("range", "generate_series"):
        return SMALL + 8 * series(arguments)
    if name in _CONCATENATES:
        separators = sizes[0] * len(sizes) if name == "concat_ws" and sizes else 0
        return total + separators + SMALL
    if name in ("replace", "regexp_replace"):
        return _replaced(name, arguments, sizes)
    if name in BOUNDED:
        width = number(arguments[1]) if len(arguments) > 1 else None
        return 4 * (BOUND if width is None else width)
    if name in _SHORTENS:
        wanted = number(arguments[_SHORTENS[name]]) if len(arguments) > _SHORTENS[name] else None
        return min(sizes[0], 4 * abs(wanted)) + SMALL if wanted is not None and sizes else total
    if name in ("format", "printf"):
        text = str((arguments[0].get("literal") or {}).get("text", "")) if arguments else ""
        return sizes[0] + max(1, text.count("{") + text.count("%")) * max([*sizes[1:], SMALL]) if sizes else SMALL
    if name in ("strftime", "strptime"):
        return SMALL + 15 * max(sizes, default=1)
    if name in _SPLITS:
        return total * 16
    if name in _SELECTS and len(sizes) > 1:
        return sizes[0] * max(1, sizes[1] // 8)
    if name in _JOINS:
        return total + (max(1, sizes[0] // 8) * max(sizes[1:], default=1) if sizes else 0)
    if name in _ESCAPES:
        return total * _ESCAPES[name]
    if name in ("json_extract", "json_extract_string", "->", "->>", "json_value", "json_extract_path"):
        path = str((arguments[1].get("literal") or {}).get("text", "")) if len(arguments) > 1 else ""
        return sizes[0] * 8 if sizes and ("*" in path or ".." in path) else max(sizes, default=SMALL)
    if name in _PICKS or (name in functions().aggregate and name not in _COLLECTS) or name in functions().window:
        return max(sizes, default=SMALL) * (MANY if len(sizes) > 1 and name in _TOPS else 1)
    if name == "operator_unpack":
        return total * WIDTH
    if kind == "OPERATOR":
        return max([*sizes, *rest], default=SMALL)
    if not name[:1].isalpha():
        return SMALL if name in ("+", "-", "*", "/", "//", "%", "**", "^", "&", "|", "~", "<<", ">>") else total + SMALL
    names = sum(len(str(a.get("name") or "")) for a in node.get("arguments") or ())
    return total + names + SMALL


def _replaced(name: str, arguments: Sequence[Node], sizes: Sequence[int]) -> int:
    """Bytes after a replacement: how often it can match times how long it is."""
    if len(sizes) < 3:
        return sum(sizes) + SMALL
    pattern = text_of(arguments[1])
    shortest = 1 if pattern is None else max(1, len(pattern)) if name == "replace" else _shortest_match(pattern)
    everywhere = name == "replace" or len(arguments) > 3
    if not everywhere:
        return sizes[0] + sizes[2]
    written = text_of(arguments[2])
    copies = sum(map(written.count, _REFERENCES)) if written is not None and name == "regexp_replace" else 0
    times = sizes[0] // shortest + 1
    return max(sizes[0], times * sizes[2]) + sizes[0] * (copies + (shortest > 1))


def _shortest_match(pattern: str) -> int:
    """The least number of characters that a pattern matches, at least 1; 1 where it cannot be told."""
    try:
        return max(1, int(regex.parse(pattern).getwidth()[0]))
    except (re.error, OverflowError, RecursionError, ValueError, Warning):
        return 1


def text_of(node: Node) -> str | None:
    """A text written out, also one that is cast; None for anything else."""
    while node.get("class") == "CAST":
        node = node["child"]
    literal = node.get("literal") or {}
    return str(literal.get("text")) if node.get("class") == "CONSTANT" and literal.get("kind") == "STRING" else None


def number(node: Node) -> int | None:
    """A small whole number written out; None for anything else."""
    text = str((node.get("literal") or {}).get("text", ""))
    if node.get("class") == "FUNCTION" and node.get("function_name") == "-" and len(arguments_of(node)) == 1:
        return number(arguments_of(node)[0])
    return int(text) if node.get("class") == "CONSTANT" and text.isdigit() and len(text) < 10 else None


def series(arguments: Sequence[Node]) -> int:
    """Most elements of a `range`: what its bounds (whole numbers, as checked elsewhere) span."""
    bounds = [abs(number(a) or 0) for a in arguments[:2]]
    return sum(bounds)
