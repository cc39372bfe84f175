"""Statements made out of valid ones: words and trees cut, doubled, swapped and grafted; and calls of every function that
the guard allows, with awkward arguments. Everything is decided by the `random.Random` given."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from sqlglot import exp

from muster.sql.dialect import DIALECT, write
from muster.sql.functions import functions, words
from sql.grammar import statements

SQL = Path(__file__).parent.parent / "sql"
WORD = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[A-Za-z_][\w.]*|\d[\w.]*|\s+|->>|->|::|\|\||<=|>=|<>|\*\*|.""", re.DOTALL
)
MOST_BYTES = 20_000

SPICE = sorted(
    words(
        """SELECT FROM WHERE GROUP BY ORDER LIMIT OFFSET HAVING WITH RECURSIVE AS MATERIALIZED ( ) [ ] { } , . ; * + -
        / // % || -> ->> :: = < > <> NOT NULL IN IS LIKE ILIKE SIMILAR TO GLOB BETWEEN AND OR CASE WHEN THEN ELSE
        END UNION ALL INTERSECT EXCEPT DISTINCT ON USING LATERAL CROSS LEFT FULL SEMI ANTI ASOF POSITIONAL JOIN
        NATURAL OVER PARTITION ROWS RANGE PRECEDING FOLLOWING FILTER WITHIN EXPORT_STATE INTERVAL CAST TRY_CAST
        VALUES UNNEST PIVOT UNPIVOT QUALIFY WINDOW ROLLUP CUBE GROUPING SETS COLUMNS EXCLUDE REPLACE RENAME
        TABLESAMPLE IGNORE NULLS COLLATE AT ZONE ESCAPE EXISTS ANY lambda x: $x $1 ? #1 : @ ^ ~ & 1 0 -1 0.5 1e400
        1e-400 9223372036854775807 9223372036854775808 170141183460469231731687303715884105727 0x1F 1_000 'a' "b" ''
        '2020-01-01' 'nan' '[1,2]' '{"a":1}' '%' '(' '\\' NULL true false DATE TIMESTAMP op bytes _rank t q s0 k0
        python.comm_collective process.rank cluster.nodes global.python.trace_event information_schema.tables
        memory.main.x read_csv('x') getenv('HOME') range(10) generate_series(1,9) unnest([1,2]) max( count(*) sum(
        list( row_number() lag( quantile_cont( string_agg( now() STRUCT MAP BIGINT[] DECIMAL(38,10) VARCHAR HUGEINT
        BLOB -- /* */ $$ E'\\n' U&'\\0041' x'00' 'é' "日" ::JSON ::TIME ::UUID"""
    )
)

VALUES = {
    "number": ["0", "1", "-1", "7", "64", "-9223372036854775808", "9223372036854775807", "1e308", "'nan'::DOUBLE",
               "'inf'::DOUBLE", "170141183460469231731687303715884105727::HUGEINT", "99999.99::DECIMAL(38,2)", "NULL",
               "bytes", "_rank", "duration_ms", "0.5", "1000000", "4294967296", "-0.0", "255::UTINYINT", "-128::TINYINT",
               "18446744073709551615::UBIGINT", "count(*)", "sum(bytes)"],
    "text": ["''", "'a'", "op", "pg_name", "'(a+)+$'", "'%'", "'{:>9}'", "'%9d'", "'2020-01-01'", "'day'",
             "'[1,2,{\"a\":3}]'",
             "'é日本😀'", "NULL::VARCHAR", "'$.a'", "'/a/0'", "'" + "ab" * 300 + "'", "op || pg_name", "'%Y-%m-%d'", "'g'",
             "'i'", "'1'", "chr(0)", "'a,b,c'", "repeat('x', 3)", "string_agg(op, ',')"],
    "list": ["[]", "[1, NULL, 3]", "['a', 'b']", "[[1], [2, 3]]", "[0.5, 'nan'::DOUBLE]", "NULL::BIGINT[]", "list(bytes)",
             "[op, pg_name]", "[1, 2, 3]::BIGINT[3]", "[{'a': 1}]", "string_split(op, '')", "[bytes, _rank]", "range(5)"],
    "other": ["true", "NULL", "DATE '2020-02-29'", "TIMESTAMP '2020-01-01 00:00:00'", "INTERVAL '999999 years'",
              "INTERVAL 1 MONTH",
              "TIMESTAMP 'infinity'", "DATE '-infinity'", "TIME '24:00:00'", "TIMESTAMPTZ '2020-01-01'",
              "{'a': 1, 'b': op}",
              "MAP {'a': 1}", "MAP([1, 2], [3, 4])", "'\\x00\\xff'::BLOB", "'101'::BIT", "row(1, 'a')",
              "'{\"a\":[1]}'::JSON",
              "x -> x + 1", "lambda x: x", "lambda x, y: x || y", "now()", "*",
              "INTERVAL '-9223372036854775808 microseconds'",
              "'550e8400-e29b-41d4-a716-446655440000'::UUID", "TIMESTAMP '290309-12-22 (BC) 00:00:00'", "5877642-06-25"],
}  # fmt: skip
ARGUMENT_KINDS = (
    (re.compile(r"INT|DOUBLE|FLOAT|DECIMAL|NUMERIC"), "number"),
    (re.compile(r"\[\]|LIST|ARRAY"), "list"),
    (re.compile(r"VARCHAR|CHAR"), "text"),
)
FRAMES = (
    "SELECT {0}",
    "SELECT {0} FROM python.comm_collective",
    "SELECT op, {0} FROM python.comm_collective GROUP BY op",
    "SELECT {0} FROM python.comm_collective GROUP BY ALL ORDER BY 1 LIMIT 3",
    "SELECT count(*) FROM python.comm_collective WHERE {0} IS NOT NULL",
    "SELECT {0} OVER (PARTITION BY _rank ORDER BY seq) FROM python.comm_collective",
    "SELECT {0} FILTER (WHERE bytes > 0) FROM python.comm_collective",
    "WITH q AS (SELECT {0} AS v FROM python.comm_collective) SELECT count(DISTINCT v), max(v), min(v) FROM q",
    "SELECT a.op FROM python.comm_collective a JOIN python.comm_collective b ON {0} IS NULL",
    "SELECT (SELECT {0} FROM python.comm_collective LIMIT 1) FROM process.rank",
)


def valid_statements(random_seed: int, drawn: int = 1500) -> list[str]:
    """What is mutated: the statements of the suites, and draws of their grammar."""
    found: list[str] = []
    for path in sorted(SQL.glob("queries/*.sql")):
        found += [s for s in path.read_text().split("\n\n") if s.strip()]
    found += [s for s in (SQL / "fixtures" / "faithful.sql").read_text().splitlines() if s.strip()]
    for path in sorted(SQL.glob("fixtures/**/*.yaml")):
        found += _texts(yaml.safe_load(path.read_text()), is_list=path.name == "hostile.yaml")

    @seed(random_seed)
    @settings(
        max_examples=drawn, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(statements)
    def draw(sql: str) -> None:
        found.append(sql)

    draw()
    return list(dict.fromkeys(found))


def _texts(tree: object, *, is_list: bool) -> list[str]:
    if isinstance(tree, dict):
        own = [tree["sql"]] if isinstance(tree.get("sql"), str) else []
        return own + [t for v in tree.values() for t in _texts(v, is_list=is_list)]
    if isinstance(tree, list):
        return [t for v in tree for t in ([v] if is_list and isinstance(v, str) else _texts(v, is_list=is_list))]
    return []


def signatures() -> dict[str, list[list[str]]]:
    """Parameter types of every function that the guard allows."""
    with duckdb.connect(":memory:") as connection:
        rows = connection.execute("SELECT lower(function_name), parameter_types FROM duckdb_functions()").fetchall()
    found: dict[str, list[list[str]]] = {name: [] for name in sorted(functions().allowed)}
    for name, types in rows:
        if name in found:
            found[name].append([str(t).upper() for t in types or ()])
    return found


class Mutator:
    """Draws one statement at a time. `draw()` never raises."""

    def __init__(self, random_seed: int, *, drawn: int = 1500) -> None:
        self._random = random.Random(random_seed)
        self._valid = valid_statements(random_seed, drawn)
        self._trees = [t for t in map(_parsed, self._valid) if t is not None]
        self._parts = [n for t in self._trees for n in t.walk() if isinstance(n, exp.Expr)]
        self._signatures = signatures()
        self._names = sorted(self._signatures)

    def draw(self) -> str:
        made = self._random.choices([self._words, self._tree, self._call, self._nested], [20, 35, 40, 5])[0]()
        return made[:MOST_BYTES]

    def _words(self) -> str:
        rng = self._random
        words = [w for w in WORD.findall(rng.choice(self._valid)) if not w.isspace()] or ["SELECT"]
        for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 5, 9])):
            words = rng.choice(self._word_changes())(words) or ["SELECT"]
        return " ".join(words)

    def _word_changes(self) -> Sequence[Callable[[list[str]], list[str]]]:
        rng = self._random

        def at(words: list[str]) -> int:
            return rng.randrange(len(words))

        def span(words: list[str]) -> slice:
            start = at(words)
            return slice(start, start + rng.randrange(1, 8))

        def drop(w: list[str]) -> list[str]:
            part = span(w)
            return w[: part.start] + w[part.stop :]

        def put(w: list[str]) -> list[str]:
            i = at(w)
            return [*w[:i], rng.choice(SPICE), *w[i:]]

        def change(w: list[str]) -> list[str]:
            i = at(w)
            return [*w[:i], rng.choice(SPICE), *w[i + 1 :]]

        def double(w: list[str]) -> list[str]:
            part = span(w)
            return w[: part.start] + w[part] * rng.choice([2, 2, 3, 40]) + w[part.stop :]

        def swap(w: list[str]) -> list[str]:
            i, j = at(w), at(w)
            w = list(w)
            w[i], w[j] = w[j], w[i]
            return w

        def graft(w: list[str]) -> list[str]:
            other = [x for x in WORD.findall(rng.choice(self._valid)) if not x.isspace()]
            i = at(w)
            return w[:i] + (other[span(other)] if other else []) + w[i:]

        def rename(w: list[str]) -> list[str]:
            places = [i for i, x in enumerate(w[:-1]) if w[i + 1] == "(" and x[0].isalpha()]
            if not places:
                return put(w)
            i = rng.choice(places)
            return [*w[:i], rng.choice(self._names), *w[i + 1 :]]

        def value(w: list[str]) -> list[str]:
            i = at(w)
            return [*w[:i], rng.choice(VALUES[rng.choice(list(VALUES))]), *w[i + 1 :]]

        return drop, put, change, double, swap, graft, rename, value

    def _tree(self) -> str:
        rng = self._random
        tree = rng.choice(self._trees).copy()
        for _ in range(rng.choice([1, 1, 2, 3, 6])):
            nodes = list(tree.walk())
            node = rng.choice(nodes)
            if node is tree:
                tree = self._outer(tree)
            else:
                alike = rng.random() < 0.8
                for _ in range(12):
                    other = rng.choice(self._parts)
                    if not alike or isinstance(other, exp.Query) == isinstance(node, exp.Query):
                        break
                kept = other.copy()
                if isinstance(node, exp.Condition) and rng.random() < 0.25:
                    kept = exp.Anonymous(
                        this=rng.choice(self._names), expressions=[node.copy(), kept][: rng.randrange(1, 3)]
                    )
                node.replace(kept)
        try:
            return write(tree)
        except Exception:  # a tree that is no statement cannot always be written
            return self._words()

    def _outer(self, tree: exp.Expr) -> exp.Expr:
        try:
            text = write(tree)
            way = self._random.choice(
                [
                    "SELECT * FROM ({0}) AS z", "WITH z AS ({0}) SELECT count(*) FROM z, z AS y", "{0} UNION ALL {0}",
                    "SELECT * FROM process.rank WHERE EXISTS ({0})", "SELECT ({0})", "SELECT 1 IN ({0})",
                    "SELECT * FROM process.rank r, LATERAL ({0}) AS z", "({0}) EXCEPT ({0}) ORDER BY ALL LIMIT 3",
                    "WITH RECURSIVE z AS ({0} UNION ALL SELECT * FROM z) SELECT * FROM z LIMIT 10", "SELECT ARRAY({0})",
                    "SELECT COLUMNS(*) FROM ({0})", "FROM ({0}) SELECT * EXCLUDE (_rank) ORDER BY 1",
                    "SELECT 1 = ALL ({0})",
                ]
            )  # fmt: skip
            return _parsed(way.format(text)) or tree
        except Exception:  # as above
            return tree

    def _call(self) -> str:
        text = self._random.choice(FRAMES).format(self._one_call(self._random.choice([0, 0, 0, 1, 2])))
        return text if self._random.random() < 0.9 else text.replace("SELECT", "SELECT DISTINCT", 1)

    def _one_call(self, depth: int) -> str:
        rng = self._random
        name = rng.choice(self._names)
        types = rng.choice(self._signatures[name] or [["ANY"]])
        count = len(types) if rng.random() < 0.85 else rng.randrange(5)
        parts = [self._argument(types[i] if i < len(types) else "ANY", depth) for i in range(count)]
        inside = rng.choice(["", "", "", "", "DISTINCT "]) if parts else ""
        tail = rng.choice(["", "", "", " ORDER BY bytes", " ORDER BY op DESC"]) if name in functions().aggregate else ""
        return f"{name}({inside}{', '.join(parts)}{tail if parts else ''})"

    def _argument(self, kind: str, depth: int) -> str:
        rng = self._random
        if depth and rng.random() < 0.5:
            return self._one_call(depth - 1)
        fitting = next((k for pattern, k in ARGUMENT_KINDS if pattern.search(kind)), None)
        if fitting is None or rng.random() < 0.15:
            fitting = rng.choice(list(VALUES))
        return rng.choice(VALUES[fitting])

    def _nested(self) -> str:
        rng = self._random
        depth = rng.choice([5, 12, 25, 29, 60, 300])
        opening, middle, closing = rng.choice(
            [
                ("(", "1", ")"), ("abs(", "bytes", ")"), ("CASE WHEN bytes > 1 THEN ", "1", " END"), ("[", "1", "]"),
                ("(SELECT ", "1", ")"), ("NOT ", "true", ""), ("- ", "1", ""), ("{'a': ", "1", "}"), ("1 + ", "bytes", ""),
                ("op || ", "op", ""), ("list_transform([1, 2], lambda x: ", "1", ")"), ("replace(", "op", ", 'a', op)"),
                ("concat(op, ", "op", ", op)"), ("coalesce(NULL, ", "1", ")"), ("(op || op) || ", "op", ""),
                ("to_json(", "op", ")"), ("[x FOR x IN ", "[1]", "]"), ("cast(", "1", " AS VARCHAR)"), ("1 IN (", "1", ")"),
                ("struct_pack(a := ", "1", ")"), ("map([1], [", "1", "])"), ("regexp_replace(", "op", ", '', op, 'g')"),
                ("EXISTS (SELECT * FROM process.rank WHERE ", "true", ")"), ("list_concat([1], ", "[2]", ")"),
            ]
        )  # fmt: skip
        return rng.choice(FRAMES[:6]).format(opening * depth + middle + closing * depth)


def _parsed(sql: str) -> exp.Expr | None:
    try:
        found = DIALECT.parse(sql)
    except Exception:  # hostile texts need not parse
        return None
    return found[0] if len(found) == 1 and isinstance(found[0], exp.Query) else None
