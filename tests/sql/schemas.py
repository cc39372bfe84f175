"""Generated tables and statements over them: awkward names, many types, NULLs, NaN, infinities, skewed and empty ranks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from muster.model import ColumnType
from muster.sql.plan import Catalogue
from oracle import Oracle, with_tags
from sql.local_run import LocalRun, LocalShard

TABLES = ("gen.t", 'gen."U é"')
NAMES = ("a", "b", "Größe", 'qu"ote', "select", "rank", "with space", "_x", "time", "k0", "s0")
RANKS = 6
_NOW = datetime(2026, 1, 31, 23, 59, 59, 999_999, UTC)

Draw = Callable[[random.Random], Any]
TYPES: Mapping[str, tuple[pa.DataType, Draw]] = {
    "BIGINT": (pa.int64(), lambda r: r.choice([0, 1, 2, -1, 7, 10**15, -(2**62)])),
    "INTEGER": (pa.int32(), lambda r: r.choice([0, 1, -5, 2**31 - 1])),
    "SMALLINT": (pa.int16(), lambda r: r.choice([0, 3, -32768])),
    "UBIGINT": (pa.uint64(), lambda r: r.choice([0, 1, 2**64 - 1])),
    "DOUBLE": (pa.float64(), lambda r: r.choice([0.0, -0.0, 0.5, 1e300, math.nan, math.inf, -math.inf, r.random()])),
    "FLOAT": (pa.float32(), lambda r: r.choice([0.0, 0.25, -1.5, math.nan, math.inf])),
    "BOOLEAN": (pa.bool_(), lambda r: r.random() < 0.5),
    "VARCHAR": (pa.string(), lambda r: r.choice(["", "a", "A", "it's", 'x"y', "ünï", "日本", "%_\\", "a\nb", "0"])),
    "DECIMAL(12,2)": (pa.decimal128(12, 2), lambda r: Decimal(r.randrange(-999, 999)) / 100),
    "DECIMAL(30,4)": (pa.decimal128(30, 4), lambda r: Decimal(r.randrange(-(10**12), 10**12)) / 10000),
    "DATE": (pa.date32(), lambda r: date(2026, 1, 1) + timedelta(days=r.randrange(5))),
    "TIMESTAMP": (pa.timestamp("us"), lambda r: _NOW.replace(tzinfo=None) + timedelta(microseconds=r.randrange(3))),
    "TIMESTAMP_NS": (pa.timestamp("ns"), lambda r: r.randrange(3) + 10**18),
    "TIMESTAMP WITH TIME ZONE": (pa.timestamp("us", "UTC"), lambda r: _NOW + timedelta(r.randrange(3))),
    "BLOB": (pa.binary(), lambda r: r.choice([b"", b"\x00\xff", b"a"])),
    "BIGINT[]": (pa.list_(pa.int64()), lambda r: [r.choice([None, 1, 2]) for _ in range(r.randrange(3))]),
}
NUMBERS = ("BIGINT", "INTEGER", "SMALLINT", "DECIMAL(12,2)", "DECIMAL(30,4)")
FLOATS = ("DOUBLE", "FLOAT")


@dataclass(frozen=True)
class Made:
    """Two tables of the same ranks: their columns, all their rows in one DuckDB, and spread over shards."""

    columns: Mapping[str, Sequence[ColumnType]]
    catalogue: Catalogue
    oracle: Oracle
    runs: Sequence[LocalRun]


@cache
def made(seed: int) -> Made:
    rng = random.Random(seed)
    columns: dict[str, list[ColumnType]] = {}
    per_rank: list[dict[str, pa.Table]] = [{} for _ in range(RANKS)]
    empty, skewed = rng.randrange(RANKS), rng.randrange(RANKS)
    for shown in TABLES:
        name = shown.replace('"', "")
        kinds = ["BIGINT", *rng.sample(sorted(TYPES), rng.randrange(2, 6))]
        names = rng.sample(NAMES, len(kinds))
        columns[shown] = [ColumnType(n, k) for n, k in zip(names, kinds, strict=True)]
        for rank in range(RANKS):
            count = 0 if rank == empty else 25 if rank == skewed else rng.randrange(6)
            rows = {c.name: _values(c.type, count, rng) for c in columns[shown]}
            per_rank[rank][name] = with_tags(pa.table(rows), rank, host=f"h{rank // 2}", node_rank=rank // 2)
    whole = {n: pa.concat_tables([held[n] for held in per_rank]) for n in per_rank[0]}
    layouts = ([[r] for r in range(RANKS)], [[0, 1], [], [2, 3, 4], [5]], [list(range(RANKS))])
    runs = [LocalRun([_shard(per_rank, ranks, whole) for ranks in layout]) for layout in layouts]
    tables = {shown.replace('"', ""): tuple(c) for shown, c in columns.items()}
    return Made(columns, Catalogue(tables, owned=frozenset(tables)), Oracle(whole), runs)


def _values(kind: str, count: int, rng: random.Random) -> pa.Array:
    arrow, draw = TYPES[kind]
    return pa.array([None if rng.random() < 0.2 else draw(rng) for _ in range(count)], arrow)


def _shard(per_rank: Sequence[Mapping[str, pa.Table]], ranks: Sequence[int], whole: Mapping[str, pa.Table]) -> LocalShard:
    return LocalShard(
        {n: pa.concat_tables([per_rank[r][n] for r in ranks]) if ranks else rows.slice(0, 0) for n, rows in whole.items()}
    )


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


SHAPES = ("grouped", "grouped", "rows", "sets", "window", "self", "other", "in", "cte", "topk", "on", "sink")


@st.composite
def statements(draw: st.DrawFn, job: Made) -> str:
    """One statement over the tables of a job."""
    table = draw(st.sampled_from(sorted(job.columns)))
    columns = list(job.columns[table])
    shape = draw(
        st.sampled_from(["grouped", "grouped", "rows", "sets", "window", "self", "other", "in", "cte", "topk", "on"])
    )
    where = draw(st.one_of(st.just(""), _where(columns)))
    one = draw(st.sampled_from(columns))
    col, name = quoted(one.name), quoted(draw(st.sampled_from(columns)).name)
    if shape == "rows":
        distinct = draw(st.sampled_from(["", "DISTINCT "]))
        return f"SELECT {distinct}_rank, {col}, {name} AS n FROM {table}{where}"
    if shape == "topk":
        limit, offset = draw(st.integers(0, 9)), draw(st.integers(0, 4))
        way = draw(st.sampled_from(["", " DESC", " NULLS FIRST", " DESC NULLS LAST"]))
        return f"SELECT {col} AS c, _rank FROM {table}{where} ORDER BY c{way}, _rank LIMIT {limit} OFFSET {offset}"
    if shape == "on":
        return f"SELECT DISTINCT ON (_rank) _rank, {col} FROM {table}{where} ORDER BY _rank, {col}"
    if shape == "sink":
        inner = draw(
            st.sampled_from(
                [
                    f"SELECT * FROM {table}{where}",
                    f"SELECT _rank, {col} AS c, {name} AS n FROM {table}{where}",
                    f"SELECT DISTINCT _rank, {col} AS c FROM {table}{where}",
                    f"SELECT _rank, {col} AS c, count(*) AS n FROM {table}{where} GROUP BY _rank, {col}",
                    f"SELECT _host, max(_rank) AS _rank, {col} AS c FROM {table} GROUP BY _host, {col}",
                    f"SELECT _rank + 1 AS _rank, {col} AS c FROM {table}",
                    f"SELECT _rank, {col} AS c FROM {table} ORDER BY _rank, {col} LIMIT 9",
                ]
            )
        )
        outer = col if inner.startswith("SELECT *") else "c"
        tail = draw(
            st.sampled_from(
                [
                    f"SELECT q._rank, q.{outer} FROM q WHERE {outer} IS NOT NULL AND _rank > 1",
                    f"SELECT count(*) FROM q JOIN {table} y ON q._rank = y._local_rank WHERE q._rank IN (0, 2, 5)",
                    f"SELECT count(*), max(y._rank) FROM {table} y LEFT JOIN q ON q._rank = y._rank WHERE q._rank = 3",
                    f"SELECT _host, list(DISTINCT {outer} ORDER BY {outer}) FROM (SELECT *, 'h' AS h FROM q) z"
                    + " WHERE h = 'h' AND _rank < 4 GROUP BY _host",
                ]
            )
        )
        return f"WITH q AS ({inner}) {tail}"
    if shape == "window":
        call = draw(st.sampled_from([f"count({col})", f"min({col})", "rank()", "count(*)"]))
        part = draw(st.sampled_from(["_rank", f"_rank, {name}", name, "_host"]))
        return f"SELECT _rank, {call} OVER (PARTITION BY {part} ORDER BY {col}) AS w FROM {table}{where}"
    if shape in ("self", "other"):
        return draw(_joined(job, table, columns, same=shape == "self"))
    if shape == "in":
        negated = draw(st.sampled_from(["", "NOT "]))
        inner = f"SELECT {col} FROM {table} WHERE _rank > {draw(st.integers(-1, 4))}"
        if draw(st.booleans()):
            return f"SELECT _rank, {name} AS n FROM {table} WHERE {col} {negated}IN ({inner})"
        return (
            f"SELECT _rank, count(*) FROM {table} x WHERE {negated}EXISTS"
            f" (SELECT * FROM {table} y WHERE y.{col} = x.{col} AND y._rank <> x._rank) GROUP BY _rank"
        )
    if shape == "cte":
        use = draw(
            st.sampled_from(
                [
                    "SELECT count(*), count(DISTINCT c), max(n) FROM q",
                    "SELECT a._rank, b.n FROM q a JOIN q b ON a._rank = b._rank AND a.c = b.c",
                    "SELECT c FROM q EXCEPT SELECT c FROM q WHERE _rank > 2",
                    "SELECT c FROM q INTERSECT ALL SELECT c FROM q WHERE _rank < 4",
                    "SELECT c, n FROM q UNION SELECT c, n FROM q",
                    "SELECT _rank, n, n = (SELECT max(n) FROM q) AS most FROM q WHERE _rank IN (0, 3, 5)",
                    "SELECT count(*) FROM q, (SELECT max(n) AS m FROM q) AS top WHERE q.n < top.m",
                ]
            )
        )
        return f"WITH q AS (SELECT _rank, {col} AS c, count(*) AS n FROM {table}{where} GROUP BY ALL) {use}"
    return draw(_grouped(table, columns, where, sets=shape == "sets"))


@st.composite
def _where(draw: st.DrawFn, columns: Sequence[ColumnType]) -> str:
    column = draw(st.sampled_from(list(columns)))
    name = quoted(column.name)
    options = [f"{name} IS NULL", f"{name} IS NOT NULL", "_rank <> 3", "_rank BETWEEN 1 AND 4", "_host IN ('h0', 'h2')"]
    if column.type in (*NUMBERS, *FLOATS, "UBIGINT"):
        options += [f"{name} > 0", f"{name} <= 1", f"NOT ({name} = 0.5)", f"{name} IN (0, 1, NULL)"]
    if column.type == "VARCHAR":
        options += [f"{name} LIKE '%a%'", f"upper({name}) = 'A'", f"{name} NOT IN ('', 'ünï')", f"length({name}) > 0"]
    return " WHERE " + draw(st.sampled_from([" AND ", " OR "])).join(
        draw(st.lists(st.sampled_from(options), min_size=1, max_size=2))
    )


def _calls(column: ColumnType) -> list[str]:
    name = quoted(column.name)
    calls = ["count(*)", f"count({name})", f"count(DISTINCT {name})", f"count({name}) FILTER (WHERE _rank > 1)"]
    if column.type != "BIGINT[]":
        calls += [f"min({name})", f"max({name})"]
    if column.type not in ("BIGINT[]", "TIMESTAMP_NS"):  # Python's times have no nanoseconds
        calls += [f"list(DISTINCT {name} ORDER BY {name})"]
    if column.type in (*NUMBERS, "BOOLEAN"):
        calls += [f"sum({name}::HUGEINT)"]
    if column.type in NUMBERS:
        calls += [f"avg({name})", f"sum({name} % 7)", f"sum(DISTINCT {name} % 5)"]
    if column.type in ("BIGINT", "INTEGER", "SMALLINT", "DOUBLE", "FLOAT", "DATE", "TIMESTAMP"):
        calls += [f"median({name})", f"quantile_disc({name}, 0.25)"]
    if column.type in ("BIGINT", "INTEGER", "SMALLINT", *FLOATS):
        calls += [f"avg({name})", f"stddev_samp({name}) FILTER (WHERE abs({name}) < 1000)"]
    if column.type == "BOOLEAN":
        calls += [f"bool_and({name})", f"bool_or({name})"]
    if column.type == "VARCHAR":
        calls += [f"string_agg(DISTINCT {name}, ',' ORDER BY {name})", f"min(length({name}))"]
    return calls


@st.composite
def _grouped(draw: st.DrawFn, table: str, columns: Sequence[ColumnType], where: str, *, sets: bool) -> str:
    keys = draw(st.lists(st.sampled_from(["_rank", "_host", *(quoted(c.name) for c in columns)]), max_size=2, unique=True))
    calls = [draw(st.sampled_from(_calls(draw(st.sampled_from(list(columns)))))) for _ in range(draw(st.integers(1, 3)))]
    sql = f"SELECT {', '.join([*keys, *(f'{c} AS a{i}' for i, c in enumerate(calls))])} FROM {table}{where}"
    if not keys:
        return sql
    if sets:
        kind = draw(st.sampled_from(["ROLLUP ({0})", "CUBE ({0})", "GROUPING SETS (({0}), ())"]))
        return sql.replace(" FROM", f", grouping({keys[0]}) AS g FROM", 1) + " GROUP BY " + kind.format(", ".join(keys))
    return sql + f" GROUP BY {', '.join(keys)}" + draw(st.sampled_from(["", " HAVING count(*) > 1"]))


@st.composite
def _joined(draw: st.DrawFn, job: Made, table: str, columns: Sequence[ColumnType], *, same: bool) -> str:
    other = table if same else next(t for t in job.columns if t != table)
    mine = quoted(columns[0].name)
    theirs = quoted(job.columns[other][0].name)
    kind = draw(st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"]))
    on = draw(
        st.sampled_from(
            [
                f"x._rank = y._rank AND x.{mine} = y.{theirs}",
                f"x.{mine} = y.{theirs}",
                f"y._rank = x._rank AND x.{mine} < y.{theirs}",
                f"x._rank = y._local_rank AND x.{mine} IS NOT DISTINCT FROM y.{theirs}",
            ]
        )
    )
    shape = draw(st.sampled_from(["rows", "count", "group"]))
    out = f"x._rank, x.{mine}" + ("" if kind in ("SEMI JOIN", "ANTI JOIN") else f", y._rank AS r, y.{theirs} AS o")
    head = {"rows": out, "count": f"count(*), max(x.{mine})", "group": f"x._rank, count(*) AS n, min(x.{mine})"}[shape]
    tail = " GROUP BY x._rank" if shape == "group" else ""
    where = draw(st.sampled_from(["", " WHERE x._rank > 1", f" WHERE x.{mine} > 0"]))
    return f"SELECT {head} FROM {table} x {kind} {other} y ON {on}{where}{tail}"
