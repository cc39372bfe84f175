"""The second reading of the guard: the tree as DuckDB itself parses it, against its own lists.

It does not rest on sqlglot: what the engine would call, read or allocate is judged by the engine's tree.
"""

from __future__ import annotations

import re

from muster.errors import SqlBind, SqlForbidden, TooLarge
from muster.sql.engine_parser import Node, nodes
from muster.sql.functions import (
    BOUND,
    BOUNDED,
    CLOCK_FUNCTIONS,
    FORMATS,
    MAX_SERIES,
    TABLE_FUNCTIONS,
    denial,
    functions,
    words,
)

_OPERATORS = words(
    """+ - * / // % ** ^ || & | ~ << >> -> ->> ->>> ~~ !~~ ~~* !~~* ~~~ ^@ @ !__postfix @> <@ && <-> <=> ~* !~ <<= >>= !
    list_value array_value struct_pack row map list_comprehension array_extract array_slice contains
    trunc date_part count_star array"""
)
_CLASSES = words(
    """FUNCTION COLUMN_REF CONSTANT COMPARISON CONJUNCTION OPERATOR CAST CASE STAR SUBQUERY WINDOW BETWEEN LAMBDA
    LAMBDA_REF PARAMETER COLLATE TYPE DEFAULT"""
)
_SESSION = words("user current_user session_user current_role current_catalog current_schema")
"""Names that mean the session where no column in sight has them: functions written without parentheses, also in quotes."""
_RELATIONS = frozenset({"BASE_TABLE", "SUBQUERY", "JOIN", "EMPTY", "EXPRESSION_LIST", "TABLE_FUNCTION", "CTE"})
_WIDTH = re.compile(r"\d{4,}|[*]|\{[^{}]*\{")


def check(statements: list[Node], *, states: bool) -> None:
    """Raise SqlForbidden, SqlBind or TooLarge unless everything in the engine's tree is on a list."""
    if len(statements) != 1:
        raise SqlForbidden(f"The text holds {len(statements)} statements; exactly one is allowed.", hint="Send one SELECT.")
    _check_tables(statements, frozenset())
    for node in nodes(statements):
        kind = node.get("class")
        if kind is not None and "query_location" in node and kind not in _CLASSES:
            hint = "Write list(x) in place of ARRAY(SELECT x …)." if kind == "POSITIONAL_REFERENCE" else None
            raise SqlForbidden(f"{kind.replace('_', ' ')} is not allowed.", hint=hint or "Use plain SELECT syntax.")
        if kind == "COLUMN_REF" and len(node["column_names"]) == 1 and node["column_names"][0].lower() in _SESSION:
            name = node["column_names"][0]
            raise SqlForbidden(f"{name} reads the session.", hint=f"For a column of this name write table.{name}.")
        if "function_name" in node:
            _check_call(node, states)
        if "sample" in node and node["sample"] is not None:
            raise SqlForbidden("Samples are not allowed: they differ from call to call.", hint="Filter on a column.")
        if node.get("at_clause") is not None:
            raise SqlForbidden("AT is not allowed.", hint="Leave it out.")
        if "alias" in node and "class" not in node and node.get("type") in ("TABLE_FUNCTION",):
            call = node.get("function") or {}
            name = str(call.get("function_name", "")).lower()
            if name not in TABLE_FUNCTIONS:
                raise SqlForbidden(f"The table function {name}() is not allowed.", hint="Read the job's tables.")
        elif "alias" in node and "class" not in node and "type" in node and "sample" in node:
            if node["type"] not in _RELATIONS:
                raise SqlForbidden(f"{node['type']} is not allowed in FROM.", hint="Use plain SELECT syntax.")
            if str(node.get("ref_type", "")) == "POSITIONAL":
                raise SqlForbidden("POSITIONAL JOIN is not allowed.", hint="Join on columns.")


def _check_tables(tree: object, visible: frozenset[str]) -> None:
    """Raise SqlBind for a table without a schema that no WITH clause names where it stands: the engine has views of its
    own, which such a name would read."""
    if isinstance(tree, list):
        for part in tree:
            _check_tables(part, visible)
    elif isinstance(tree, dict):
        for entry in (tree.get("cte_map") or {}).get("map") or ():
            name, body = str(entry["key"]).lower(), entry["value"]["query_node"]
            _check_tables(body, visible | {name} if body.get("type") == "RECURSIVE_CTE_NODE" else visible)
            visible |= {name}
        if tree.get("type") == "BASE_TABLE" and not tree.get("schema_name"):
            name = str(tree["table_name"])
            if name.lower() not in visible:
                raise SqlBind(f"There is no table {name}.", hint="Name a table as schema.table.", table=name)
        for key, part in tree.items():
            if key != "cte_map":
                _check_tables(part, visible)


def _check_call(node: Node, states: bool) -> None:
    name = str(node["function_name"]).lower()
    if node.get("schema") or node.get("catalog"):
        raise SqlForbidden(f"The function {name}() is named with a schema.", hint="Write its name alone.")
    if node.get("export_state") and not states:
        raise SqlForbidden("EXPORT_STATE is for gateways only.", hint="Write the aggregate without it.")
    if name in ("range", "generate_series"):
        _check_series(name, _arguments(node))
        return
    if name not in functions().allowed and name not in _OPERATORS and name not in CLOCK_FUNCTIONS and name != "unnest":
        raise SqlForbidden(
            f"The function {name}() is not allowed.", hint=denial(name) or "It is not on the list of allowed functions."
        )
    if name in BOUNDED:
        arguments = _arguments(node)
        value = _integer(arguments[BOUNDED[name]]) if len(arguments) > BOUNDED[name] else None
        if value is None or not 0 <= value <= BOUND:
            raise SqlForbidden(
                f"The length that {name}() is given must be a number up to {BOUND}.", hint="Write the number itself."
            )
    elif name in FORMATS:
        arguments = _arguments(node)
        text = _text(arguments[0]) if arguments else None
        if text is None or _WIDTH.search(text):
            raise SqlForbidden(
                f"The format that {name}() is given must be a text without widths above 999.",
                hint="Write the format itself.",
            )
    elif name in ("list_aggregate", "list_aggr", "array_aggregate", "array_aggr", "aggregate"):
        arguments = _arguments(node)
        text = _text(arguments[1]) if len(arguments) > 1 else None
        if text is None or text.lower() not in functions().aggregate:
            raise SqlForbidden(
                f"The aggregate that {name}() is given must be the name of an allowed aggregate.", hint="Write list_sum(x)."
            )


def _check_series(name: str, arguments: list[Node]) -> None:
    values = [_integer(a) for a in arguments]
    if not values or any(v is None for v in values) or len(values) > 3:
        raise SqlForbidden(
            f"The bounds of {name}() must be whole numbers written out.",
            hint=f"At most {MAX_SERIES} rows, such as range(100).",
        )
    numbers = [v for v in values if v is not None]
    start, stop = (0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    step = numbers[2] if len(numbers) == 3 else 1
    if step == 0 or abs(stop - start) // abs(step) > MAX_SERIES:
        raise TooLarge(f"{name}() would make more than {MAX_SERIES} rows.", hint="Ask for fewer.")


def _arguments(node: Node) -> list[Node]:
    return [a.get("expression", a) for a in node.get("arguments") or node.get("children") or []]


def _integer(node: Node) -> int | None:
    if node.get("class") == "CAST":
        return _integer(node["child"])
    if node.get("class") == "FUNCTION" and node.get("function_name") == "-" and len(_arguments(node)) == 1:
        inner = _integer(_arguments(node)[0])
        return None if inner is None else -inner
    text = str(node.get("literal", {}).get("text", "")).replace("_", "")
    return int(text) if node.get("class") == "CONSTANT" and text.removeprefix("-").isdigit() and len(text) < 20 else None


def _text(node: Node) -> str | None:
    literal = node.get("literal", {})
    return str(literal.get("text")) if node.get("class") == "CONSTANT" and literal.get("kind") == "STRING" else None
