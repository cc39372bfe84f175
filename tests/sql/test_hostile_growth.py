"""Short statements that ask for enormous values, expressions or relations are refused before anything runs; those that
people write are not."""

from __future__ import annotations

import time

import pytest

from muster.errors import TooLarge
from muster.sql.guard import SHARD, USER, Limits, guard

T = "python.comm_collective"


def chain(step: str, times: int, first: str = f"SELECT op AS x FROM {T}", last: str = "SELECT count(*) FROM {0}") -> str:
    """A WITH clause of which every name is made of the one before it."""
    names = [f"c0 AS ({first})", *(f"c{i + 1} AS ({step.format(f'c{i}')})" for i in range(times))]
    return f"WITH {', '.join(names)} {last.format(f'c{times}')}"


def aliases(step: str, times: int) -> str:
    """A list of which every item uses the one before it."""
    return "SELECT op AS a0, " + ", ".join(f"{step.format(f'a{i}')} AS a{i + 1}" for i in range(times)) + f" FROM {T}"


def nested(opening: str, middle: str, closing: str, times: int) -> str:
    return f"SELECT {opening * times}{middle}{closing * times} FROM {T}"


AMPLIFIERS = {
    "alias of an alias": aliases("{0} || {0}", 40),
    "alias of an alias, by concat": aliases("concat({0}, {0}, {0})", 20),
    "numbers, by alias": aliases("{0} + {0} * {0}", 24),
    "with": chain("SELECT x || x AS x FROM {0}", 40),
    "with, columns renamed": chain("SELECT v || v FROM {0} AS q(v)", 20, first=f"SELECT op AS v FROM {T}"),
    "with, columns of the clause renamed": "WITH a(u) AS (SELECT op FROM python.comm_collective), "
    + ", ".join(f"{chr(98 + i)}(u) AS (SELECT u || u || u || u FROM {chr(97 + i)})" for i in range(10))
    + " SELECT u FROM k",
    "with, unnamed": chain('SELECT "(x || x)" || "(x || x)" AS x, x || x FROM (SELECT *, x || x FROM {0})', 12),
    "with, star": chain("SELECT * REPLACE (x || x AS x) FROM {0}", 40),
    "with, columns()": chain("SELECT COLUMNS(*) || COLUMNS(*) FROM {0}", 40),
    "with, set operation": chain("SELECT x || x || x FROM {0} UNION ALL SELECT x FROM {0}", 12),
    "subqueries": f"SELECT x FROM {'(SELECT x || x || x || x || x || x AS x FROM ' * 12}(SELECT op AS x FROM {T})"
    + ") AS q" * 12,
    "values": chain("SELECT x || x || x || x FROM {0} AS q(x)", 20, first="SELECT * FROM (VALUES ('abcdef')) AS v(x)"),
    "replace": nested("replace(", "op", ", 'a', 'aaaaaaaaaaaaaaaa')", 10),
    "replace by a column": nested("replace(", "op", ", 'a', op)", 10),
    "empty matches": nested("regexp_replace(", "op", ", '', op, 'g')", 10),
    "references": nested("regexp_replace(", "op", r", '.+', '\0\0\0\0\0\0\0\0', 'g')", 10),
    "long matches doubled": nested("regexp_replace(", "op", r", '.{9,}', '\0\0\0\0\0\0\0\0', 'g')", 10),
    "hex": nested("bin(", "op", ")", 12),
    "json in json": nested("to_json(", "op", "::VARCHAR)", 20),
    "format": nested("format('{0}{0}{0}{0}{0}{0}{0}{0}', ", "op", ")", 8),
    "lists of lists": nested("list_transform(range(300), lambda x: ", "x", ")", 4),
    "lists by names": aliases("[{0}, {0}, {0}, {0}]", 20),
    "comprehensions": "SELECT [[[[z FOR z IN range(500)] FOR y IN range(500)] FOR x IN range(500)]]",
    "reduction": "SELECT list_reduce(['a', 'b', 'c'], lambda x, y: x || x)",
    "reduction of lists": f"SELECT list_reduce(list([op]), lambda x, y: list_concat(x, x)) FROM {T}",
    "splits": nested("array_to_string(string_split(", "op", ", ''), 'xxxxxxxxxxxxxxxx')", 6),
    "joined texts": nested("array_to_string(range(9000), ", "op", ")", 3),
    "selection": f"SELECT list_select([op || op || op || op || op], range(9000)) FROM {T}",
    "names of structs": "SELECT list_transform(range(9000), lambda x: {'" + "n" * 2000 + "': x})::VARCHAR",
    "padding": nested("replace(", "rpad(op, 4000, 'a')", ", 'a', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')", 2),
    "series": "SELECT range(100000)",
    "pairs of letters": f"SELECT levenshtein(rpad(op, 4000, 'a'), rpad(op, 4000, 'b')) FROM {T}",
    "columns of columns": chain("SELECT * FROM {0} AS a, {0} AS b", 10, first=f"SELECT * FROM {T}"),
    "relations": chain("SELECT a.x FROM {0} AS a JOIN {0} AS b ON a.x = b.x", 13),
    "relations in a scalar": chain("SELECT (SELECT max(x) FROM {0}) AS x FROM {0} a, {0} b", 9),
    "filters": chain("SELECT x * x - x AS x FROM {0}", 20, last="SELECT count(*) FROM {0} WHERE x > 0"),
    "recursion": "WITH RECURSIVE z AS (SELECT 'a' AS x UNION ALL SELECT concat("
    + ", ".join(["x"] * 40)
    + ") FROM z WHERE length(x) < 1e9) SELECT max(length(x)) FROM z",
    "a long chain": chain("SELECT x + 1 AS x FROM {0} WHERE x > 0", 160, first=f"SELECT bytes AS x FROM {T}"),
    "parent query": f"SELECT (SELECT max({' || '.join(['b.x'] * 90)}) FROM {T}) AS x"
    + f" FROM (SELECT {' || '.join(['op'] * 90)} AS x FROM {T}) AS b",
    "table function": f"SELECT {' || '.join(['u.x'] * 90)} FROM (SELECT {' || '.join(['op'] * 90)} AS x FROM {T}) AS b,"
    " LATERAL (SELECT unnest([b.x])) AS u(x)",
}

FAIR = {
    "a message": f"SELECT 'rank ' || _rank || ' of ' || _host || ': ' || op || ' for ' || duration_ms || ' ms' FROM {T}",
    "a fingerprint": "SELECT regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(message,"
    " '0x[0-9a-f]+', '<address>', 'g'), '[0-9a-f]{8}-[0-9a-f-]{27}', '<uuid>', 'g'), '/[^ ]+', '<path>', 'g'),"
    " '[0-9]+', '<number>', 'g'), ' +', ' ', 'g') AS fingerprint, count(*) FROM process.kmsg GROUP BY 1",
    "lists": f"SELECT _rank, list_sum(list_transform(list(bytes ORDER BY seq), lambda x: x * 2)) FROM {T} GROUP BY 1",
    "texts collected": f"SELECT array_to_string(list_sort(list_distinct(list(op))), ', '), string_agg(op, ',') FROM {T}",
    "a running sum": f"SELECT list_reduce(list(bytes), lambda x, y: x + y), list_reduce(list(op), lambda x, y: x || y)"
    f" FROM {T}",
    "names used twice": chain("SELECT a.x, b.n FROM {0} a JOIN (SELECT x, count(*) n FROM {0} GROUP BY 1) b USING (x)", 4),
    "ratios of ratios": f"SELECT sum(bytes) AS a, count(*) AS b, a / b AS c, c / a AS d, c / d AS e, e / b AS f FROM {T}",
    "numbers in a chain": chain("SELECT x + 1 AS x FROM {0}", 40, first=f"SELECT bytes AS x FROM {T}"),
    "cleaned texts": chain("SELECT trim(lower(x)) AS x FROM {0}", 5),
    "shortened texts": f"SELECT left(op, 400) || '…' || right(op, 400) FROM {T}",
    "padded": f"SELECT rpad(op, 20, ' ') || lpad(bytes::VARCHAR, 12, ' ') FROM {T}",
    "a series": "SELECT unnest(range(1000)), list_transform(range(100), lambda x: x * x)",
    "a recursion": "WITH RECURSIVE z AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM z WHERE n < 100) SELECT sum(n) FROM z",
    "edit distance": f"SELECT a.op, b.op, levenshtein(a.op, b.op) FROM {T} a, {T} b",
    "structs": f"SELECT to_json({{'op': op, 'ranks': list(_rank)}}) FROM {T} GROUP BY op",
    "many columns": "SELECT "
    + ", ".join(f"sum(bytes + {i}) AS a{i}, a{i} || op AS b{i}" for i in range(100))
    + f" FROM {T} GROUP BY op",
}  # fmt: skip


@pytest.mark.parametrize("limits", [USER, SHARD], ids=["gateway", "agent"])
@pytest.mark.parametrize("name", AMPLIFIERS)
def test_a_short_text_cannot_ask_for_an_enormous_value(name: str, limits: Limits) -> None:
    began = time.process_time()
    with pytest.raises(TooLarge) as caught:
        guard(AMPLIFIERS[name], limits=limits)
    assert caught.value.hint
    assert time.process_time() - began < 2


@pytest.mark.parametrize("name", FAIR)
def test_what_people_write_is_not_too_large(name: str) -> None:
    assert guard(FAIR[name]).sql
    assert guard(guard(FAIR[name]).sql, limits=SHARD).sql
