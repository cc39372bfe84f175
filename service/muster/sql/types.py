"""DuckDB types, by their names in DESCRIBE: which of them survive the way over Arrow, and which can be literals."""

from __future__ import annotations

import re
from functools import lru_cache

_PLAIN = frozenset(
    """BOOLEAN TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT FLOAT DOUBLE VARCHAR BLOB DATE TIME
    TIMESTAMP TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS""".split()  # noqa: SIM905
) | {"TIMESTAMP WITH TIME ZONE"}
"""Arrow has exactly these."""
_DECIMAL = re.compile(r"DECIMAL\(\d+,\s*\d+\)")
_LIST = re.compile(r"(.*)\[(\d*)\]", re.DOTALL)
INTEGERS = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "HUGEINT"}
)
_TYPE_TEXT = re.compile(r'[A-Za-z_][A-Za-z0-9_ ]*(?:[A-Za-z0-9_ ,()\[\]"]*)')


def round_trips(name: str) -> bool:
    """Whether a column of this type comes back over Arrow as it was, after a cast to the type.

    HUGEINT travels as DECIMAL(38, 0): the engine refuses to export what does not fit, so a value is right or an error.
    """
    return name == "HUGEINT" or _nested(name)


@lru_cache(maxsize=4096)
def _nested(name: str) -> bool:
    name = name.strip()
    if name in _PLAIN or _DECIMAL.fullmatch(name):
        return True
    if match := _LIST.fullmatch(name):
        return not match[2] and _nested(match[1])
    if name.startswith("STRUCT(") and name.endswith(")"):
        fields = split_fields(name[len("STRUCT(") : -1])
        return bool(fields) and all(_nested(_field_type(f)) for f in fields)
    return False


def can_be_literal(name: str) -> bool:
    """Whether a value of this type can be written as `CAST('…' AS type)` without loss, given as number or text."""
    return name in _PLAIN - {"BLOB"} or name == "HUGEINT" or bool(_DECIMAL.fullmatch(name))


def is_python_exact(name: str) -> bool:
    """Whether the engine's Python client gives values of this type without loss (times lose nanoseconds and infinity)."""
    return name in INTEGERS or name in ("BOOLEAN", "DOUBLE", "FLOAT", "VARCHAR") or bool(_DECIMAL.fullmatch(name))


def is_exact_number(name: str) -> bool:
    """Whether sums over this type do not depend on the order of the rows."""
    return name in INTEGERS or name == "BOOLEAN" or bool(_DECIMAL.fullmatch(name))


def is_whole_number(name: str) -> bool:
    """Whether averages over this type do not depend on the order of the rows or on how the engine divides."""
    return name in INTEGERS or name == "BOOLEAN"


_WIDER = {
    "TINYINT": "SMALLINT INTEGER BIGINT HUGEINT FLOAT DOUBLE",
    "SMALLINT": "INTEGER BIGINT HUGEINT FLOAT DOUBLE",
    "INTEGER": "BIGINT HUGEINT DOUBLE",
    "BIGINT": "HUGEINT",
    "UTINYINT": "SMALLINT USMALLINT INTEGER UINTEGER BIGINT UBIGINT HUGEINT FLOAT DOUBLE",
    "USMALLINT": "INTEGER UINTEGER BIGINT UBIGINT HUGEINT FLOAT DOUBLE",
    "UINTEGER": "BIGINT UBIGINT HUGEINT DOUBLE",
    "UBIGINT": "HUGEINT",
    "FLOAT": "DOUBLE",
    "DATE": "TIMESTAMP",
}


def widens(narrow: str, wide: str) -> bool:
    """Whether every value of one type is a value of the other, so that a cast neither fails nor loses anything."""
    return wide in _WIDER.get(narrow, "").split()


def is_type_text(name: str) -> bool:
    """Whether a text looks like a type and nothing else. What a shard says its types are comes from outside."""
    return len(name) <= 2_000 and bool(_TYPE_TEXT.fullmatch(name))


def split_fields(text: str) -> list[str]:
    """Split the inside of a type at its outermost commas."""
    fields, depth, start, quoted = [], 0, 0, False
    for i, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "," and depth == 0:
            fields.append(text[start:i].strip())
            start = i + 1
    fields.append(text[start:].strip())
    return [f for f in fields if f]


def _field_type(field: str) -> str:
    if field.startswith('"'):
        end = field.index('"', 1)
        while field[end + 1 : end + 2] == '"':
            end = field.index('"', end + 2)
        return field[end + 1 :].strip()
    return field.partition(" ")[2].strip()
