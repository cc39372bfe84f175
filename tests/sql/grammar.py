"""Statements over `python.comm_collective` for hypothesis: typed, mostly free of run-time errors."""

from __future__ import annotations

from hypothesis import strategies as st

INTS = ("bytes", "seq", "global_step", "_rank", "rank", "group_size")
FLOATS = ("duration_ms", "blocked_ms")
TEXTS = ("op", "pg_name", "_host", "timing_source")
TABLE = "python.comm_collective"

ints = st.recursive(
    st.sampled_from([*INTS, "0", "1", "7", "NULL::BIGINT"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "%", "//"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda x: f"coalesce({x}, 3)"),
        inner.map(lambda x: f"CASE WHEN {x} > 1 THEN {x} ELSE -1 END"),
    ),
    max_leaves=3,
)
floats = st.one_of(
    st.sampled_from(FLOATS), st.sampled_from(FLOATS).map(lambda x: f"({x} / 2)"), ints.map(lambda x: f"{x}::DOUBLE")
)
texts = st.one_of(st.sampled_from(TEXTS), st.sampled_from(TEXTS).map(lambda x: f"upper({x})"), st.just("(op || '!')"))
values = st.one_of(ints, floats, texts)
conditions = st.recursive(
    st.one_of(
        st.tuples(ints, st.sampled_from(["<", ">=", "=", "<>"]), ints).map(" ".join),
        st.tuples(floats, st.sampled_from(["<", ">"]), st.sampled_from(["0.5", "2", "duration_ms"])).map(" ".join),
        texts.map(lambda x: f"{x} = 'barrier'"),
        values.map(lambda x: f"{x} IS NOT NULL"),
        st.sampled_from(
            ["_rank = 1", "_rank IN (0, 3, 9)", "op IN ('barrier', NULL)", "op LIKE '%r%'", "bytes BETWEEN 0 AND 5"]
        ),
        st.sampled_from(
            [
                f"global_step > (SELECT max(global_step) - 3 FROM {TABLE})",
                f"bytes >= (SELECT median(bytes) FROM {TABLE} WHERE bytes < 100)",
                f"op = (SELECT min(op) FROM {TABLE})",
                f"_rank IN (SELECT _rank FROM {TABLE} WHERE op = 'barrier')",
            ]
        ),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda x: f"NOT ({x})"),
    ),
    max_leaves=3,
)
aggregates = st.one_of(
    st.just("count(*)"),
    values.map(lambda x: f"count({x})"),
    values.map(lambda x: f"count(DISTINCT {x})"),
    ints.map(lambda x: f"sum({x})"),
    ints.map(lambda x: f"avg({x})"),
    st.tuples(st.sampled_from(["min", "max"]), values).map(lambda t: f"{t[0]}({t[1]})"),
    st.one_of(ints, floats).map(lambda x: f"median({x})"),
    st.tuples(st.sampled_from(["0.1", "0.5", "0.95"]), ints).map(lambda t: f"quantile_cont({t[1]}, {t[0]})"),
    texts.map(lambda x: f"quantile_disc({x}, 0.5)"),
    st.tuples(st.sampled_from(["sum", "avg", "stddev_samp", "var_pop"]), st.just("bytes")).map(lambda t: f"{t[0]}({t[1]})"),
    conditions.filter(lambda c: "SELECT" not in c).map(lambda c: f"count(*) FILTER (WHERE {c})"),
    conditions.filter(lambda c: "SELECT" not in c).map(lambda c: f"max(bytes) FILTER (WHERE {c})"),
    conditions.filter(lambda c: "SELECT" not in c).map(lambda c: f"bool_or({c})"),
    ints.map(lambda x: f"list(DISTINCT {x} ORDER BY {x})"),
)  # fmt: skip


@st.composite
def grouped(draw: st.DrawFn, *, named: bool = True) -> str:
    keys = draw(st.lists(st.one_of(st.just("_rank"), st.just("global_step"), st.just("op"), values), max_size=3))
    keys = [k for k in dict.fromkeys(keys) if not k.lstrip("-").isdigit() and not k.startswith("NULL")]
    calls = draw(st.lists(aggregates, min_size=0 if keys else 1, max_size=3))
    parts = [f"{k} AS k{i}" for i, k in enumerate(keys)] + [f"{c} AS a{i}" for i, c in enumerate(calls)]
    sql = f"SELECT {', '.join(parts)} FROM {TABLE}"
    if draw(st.booleans()):
        sql += f" WHERE {draw(conditions)}"
    if keys:
        sql += draw(st.sampled_from([f" GROUP BY {', '.join(keys)}", " GROUP BY ALL"]))
        if draw(st.booleans()):
            sql += " HAVING count(*) > 1"
    return sql


@st.composite
def plain(draw: st.DrawFn) -> str:
    parts = draw(st.lists(values, min_size=1, max_size=3))
    distinct = draw(st.sampled_from(["", "", "DISTINCT "]))
    sql = f"SELECT {distinct}{', '.join(f'{p} AS c{i}' for i, p in enumerate(parts))} FROM {TABLE}"
    if draw(st.booleans()):
        sql += f" WHERE {draw(conditions)}"
    if draw(st.booleans()):
        sql += f" ORDER BY ALL LIMIT {draw(st.integers(0, 6))}"
        if draw(st.booleans()):
            sql += f" OFFSET {draw(st.integers(0, 4))}"
    return sql


@st.composite
def nested(draw: st.DrawFn) -> str:
    inner = draw(st.one_of(grouped(), plain()))
    first = "k0" if " AS k0" in inner else "a0" if " AS a0" in inner else "c0"
    outer = draw(
        st.sampled_from(
            [
                "SELECT count(*), max({c}), min({c}), count(DISTINCT {c}) FROM q",
                "SELECT {c} AS x, count(*) FROM q GROUP BY 1",
                "SELECT DISTINCT {c} FROM q",
                "SELECT * FROM q ORDER BY ALL",
                "SELECT a.{c}, b.n FROM q AS a LEFT JOIN (SELECT _rank, count(*) AS n FROM "
                + TABLE
                + " GROUP BY _rank) AS b ON a.{c}::VARCHAR = b._rank::VARCHAR",
                "SELECT {c} FROM q UNION ALL SELECT {c} FROM q",
                "SELECT {c}, rank() OVER (ORDER BY {c}) FROM q",
                "SELECT (SELECT count(*) FROM q), count({c}) FROM q WHERE {c} IS NOT NULL",
            ]
        )
    )  # fmt: skip
    text = outer.format(c=first)
    if draw(st.booleans()):
        return f"WITH q AS ({inner}) {text}"
    return text.replace("FROM q", f"FROM ({inner}) AS q").replace("AS q AS a", "AS a")


@st.composite
def windowed(draw: st.DrawFn) -> str:
    call = draw(st.sampled_from(["sum(bytes)", "count(*)", "max(op)", "rank()", "dense_rank()", "min(duration_ms)"]))
    partition = draw(st.sampled_from(["_rank", "_rank, op", "global_step", "op"]))
    order = " ORDER BY global_step" if "rank()" in call or draw(st.booleans()) else ""
    sql = f"SELECT _rank, op, {call} OVER (PARTITION BY {partition}{order}) AS w FROM {TABLE}"
    return sql + (f" WHERE {draw(conditions)}" if draw(st.booleans()) else "")


@st.composite
def joined(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN", "CROSS JOIN"]))
    left = draw(st.sampled_from([TABLE, f"(SELECT _rank, global_step, max(bytes) AS bytes FROM {TABLE} GROUP BY ALL)"]))
    right = draw(
        st.sampled_from(
            ["process.rank", "cluster.nodes", "(SELECT _rank, count(*) AS pid FROM python.trace_event GROUP BY 1)"]
        )
    )
    key = "b.rank" if right == "cluster.nodes" else "b._rank"
    only_left = kind in ("SEMI JOIN", "ANTI JOIN")
    on = draw(st.sampled_from(["", " AND a.bytes > 1", " AND b.pid < 3", " AND a.global_step % 2 = 0"]))
    sql = f"{left} AS a {kind} {right} AS b" + ("" if kind == "CROSS JOIN" else f" ON a._rank = {key}{on}")
    filters = ["a.bytes > 1", "a.global_step IS NULL", "a._rank IN (1, 3)", "bytes = 2 OR a._rank = 0"]
    if not only_left:
        filters += [
            "b.pid IS NULL",
            "b.pid > 0",
            "coalesce(b.pid, 1) = 1",
            "a.bytes > b.pid",
            "pid IS NOT NULL AND bytes > 0",
        ]
    where = draw(st.lists(st.sampled_from(filters), max_size=2))
    columns = ["a._rank", "a.bytes", "global_step"] + ([] if only_left else ["b.pid", key])
    picked = draw(st.lists(st.sampled_from(columns), min_size=1, max_size=3, unique=True))
    shape = draw(st.sampled_from(["rows", "count", "group"]))
    tail = f" WHERE {' AND '.join(f'({w})' for w in where)}" if where else ""
    if shape == "count":
        return f"SELECT count(*), count({picked[0]}) FROM {sql}{tail}"
    if shape == "group":
        return f"SELECT {picked[0]} AS k, count(*), max(a.bytes) FROM {sql}{tail} GROUP BY 1"
    return f"SELECT {', '.join(picked)} FROM {sql}{tail}"


statements = st.one_of(grouped(), plain(), nested(), windowed(), joined())
