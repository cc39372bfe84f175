"""The engine's own reading of a text: DuckDB's parser as a second opinion.

sqlglot reads the user's text and writes the text that runs. Between the two a difference in grammar could hide: an
operator with another precedence, a clause dropped. So both texts are parsed by DuckDB itself (`json_serialize_sql`, which
parses and does nothing else), and the two trees must be equal but for spellings that mean the same.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import duckdb

from muster.errors import SqlSyntax, TooLarge

Node = dict[str, Any]

_PLACES = frozenset({"query_location", "query_location_length", "is_operator", "is_legacy_function_call", "syntax_type"})
_SAME_FUNCTION = {"^": "**", "pow": "**", "power": "**", "@": "abs", "^@": "starts_with", "~": "regexp_matches",
                  "position": "strpos"}  # fmt: skip
CLOCKS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
"""Functions written without parentheses; to the engine's parser they are names of columns."""
_SAME_ORDER = {"NULLS LAST": "ORDER_DEFAULT", "ASCENDING": "ORDER_DEFAULT", "ASC": "ORDER_DEFAULT"}


class EngineParser:
    """Parses with DuckDB. One connection without any data, shared under a lock; a parse takes well below 1 ms."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection = duckdb.connect(
            ":memory:", config={"threads": "1", "enable_external_access": "false", "python_enable_replacements": "false"}
        )
        rows = self._connection.execute("SELECT type_name, logical_type FROM duckdb_types() WHERE internal").fetchall()
        self._types = {str(name).upper(): str(logical).upper() for name, logical in rows}

    def parse(self, sql: str) -> list[Node]:
        """The statements of a text as DuckDB parses them.

        Raises SqlSyntax, and TooLarge when the text nests too deep for the engine.
        """
        with self._lock:
            row = self._connection.execute("SELECT json_serialize_sql($1)", [sql]).fetchone()
        try:
            answer = json.loads(row[0]) if row else {}
        except RecursionError:
            raise _too_deep() from None
        if answer.get("error"):
            message = str(answer.get("error_message", ""))
            if "depth limit" in message:
                raise _too_deep()
            if "Only SELECT" in message:
                raise SqlSyntax("Only a single SELECT can be run.", hint="Send one SELECT, or a WITH … SELECT.")
            place = answer.get("position")
            raise SqlSyntax(
                _sentence(message),
                hint="Check the statement against DuckDB's SQL.",
                position=position_of(sql, int(place)) if place else None,
            )
        statements = answer["statements"]
        return [s["node"] for s in statements]

    def same(self, one: list[Node], other: list[Node]) -> bool:
        """Whether two parses mean the same: equal but for places and for spellings of one thing."""
        return bool(self._plain(one) == self._plain(other))

    def _plain(self, node: Any, parent: str = "") -> Any:
        if isinstance(node, list):
            return [self._plain(n, parent) for n in node]
        if not isinstance(node, dict):
            return node
        kind = node.get("type")
        if kind == "OPERATOR_IS_NOT_NULL":
            return {"not": {"null": self._plain(node["children"])}}
        if kind == "OPERATOR_IS_NULL":
            return {"null": self._plain(node["children"])}
        if kind == "OPERATOR_NOT":
            return {"not": self._plain(node["children"][0])}
        if kind == "VALUE_CONSTANT" and parent == "OPERATOR_CAST" and "literal" in node:
            return {"literal": node["literal"].get("text")}
        if kind == "COMPARE_DISTINCT_FROM":
            return {"not": self._plain({**node, "type": "COMPARE_NOT_DISTINCT_FROM"}, parent)}
        plain = {k: self._plain(v, str(kind)) for k, v in node.items() if k not in _PLACES}
        if kind == "TYPE" and "type_name" in node:
            name = str(node["type_name"]).upper()
            plain["type_name"] = self._types.get(name, name)
            plain.pop("qualified_name", None)
        elif kind == "COLUMN_REF" and len(node["column_names"]) == 1:
            name = node["column_names"][0]
            plain["column_names"] = [name.lower() if name.lower() in CLOCKS else name]
        elif kind == "VALUE_CONSTANT" and "literal" in node:
            plain["literal"] = {**node["literal"], "text": _number(node["literal"])}
        elif "function_name" in node:
            name = str(node["function_name"]).lower()
            plain["function_name"] = _SAME_FUNCTION.get(name, name)
            plain.pop("qualified_name", None)
        elif "null_order" in node:
            plain["null_order"] = _SAME_ORDER.get(node["null_order"], node["null_order"])
            plain["type"] = _SAME_ORDER.get(node["type"], node["type"])
        return plain


@cache
def engine_parser() -> EngineParser:
    """The parser of this process; it holds no data and no settings that change."""
    return EngineParser()


def nodes(tree: Any) -> Iterator[Node]:
    """Every object of a parse, in no order."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def position_of(sql: str, byte_offset: int) -> tuple[int, int]:
    """(line, column), both from 1, of a byte offset in a text."""
    before = sql.encode()[:byte_offset].decode(errors="ignore")
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _too_deep() -> TooLarge:
    return TooLarge("The statement nests too deeply.", hint="Flatten it, or name its parts in a WITH clause.")


def _number(literal: Node) -> str:
    text = str(literal.get("text", ""))
    if literal.get("kind") not in ("INTEGER", "NUMERIC"):
        return text
    text = text.replace("_", "").lower()
    return f"0{text}" if text.startswith(".") else text


def _sentence(message: str) -> str:
    text = message.strip().splitlines()[0].strip() if message.strip() else "The text does not parse."
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
