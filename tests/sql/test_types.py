"""Every type that may travel comes back as it was, on every route."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from muster.model import ColumnType
from muster.sql.plan import Catalogue, Statement
from muster.sql.planner import Planner
from muster.sql.types import can_be_literal, round_trips, split_fields
from oracle import Oracle, differences, with_tags
from sql.local_run import LocalRun, LocalShard

TYPES = {
    "i": "INTEGER",
    "t": "TINYINT",
    "u": "UBIGINT",
    "f": "FLOAT",
    "d": "DOUBLE",
    "m": "DECIMAL(10,2)",
    "b": "BOOLEAN",
    "s": "VARCHAR",
    "y": "DATE",
    "w": "TIMESTAMP",
    "n": "TIMESTAMP_NS",
    "z": "TIMESTAMP WITH TIME ZONE",
    "c": "TIME",
    "x": "BLOB",
    "l": "BIGINT[]",
    "r": 'STRUCT(a BIGINT, "b c" VARCHAR[])',
}
ROWS = """
    SELECT i::INTEGER, (i % 100)::TINYINT, (i * 1000000007)::UBIGINT, (i / 7)::FLOAT,
        CASE i % 7 WHEN 0 THEN 'nan'::DOUBLE WHEN 1 THEN 'inf'::DOUBLE WHEN 2 THEN NULL ELSE i / 3 END,
        (i / 8)::DECIMAL(10,2),
        CASE WHEN i % 5 = 0 THEN NULL ELSE i % 2 = 0 END, CASE WHEN i % 6 = 0 THEN NULL ELSE 'ü''"' || i % 4 END,
        DATE '2026-01-01' + (i % 9)::INTEGER, TIMESTAMP '2026-01-01' + to_microseconds(i * 1000001),
        make_timestamp_ns(i * 1000000001), TIMESTAMPTZ '2026-01-01 00:00:00+00' + to_microseconds(i * 1000001),
        TIME '01:02:03.000004' + to_microseconds(i), encode('b' || i), [i, NULL, i + 1], {'a': i, 'b c': ['x', NULL]}
    FROM range(RANGE) q(i)
"""
CATALOGUE = Catalogue({"my.mixed": tuple(ColumnType(n, t) for n, t in TYPES.items())})
ORDERED = "itufdmbsywz"
QUERIES = [
    "SELECT * FROM my.mixed",
    "SELECT _rank, count(*) FROM my.mixed GROUP BY _rank",
    *[f"SELECT DISTINCT {c} FROM my.mixed" for c in TYPES],
    *[f"SELECT {c}, count(*) FROM my.mixed GROUP BY {c}" for c in TYPES],
    *[f"SELECT min({c}), max({c}), count({c}) FROM my.mixed" for c in ORDERED],
    *[f"SELECT _rank, max({c}) FROM my.mixed GROUP BY _rank" for c in TYPES],
    *[f"SELECT {c} FROM my.mixed ORDER BY {c} DESC NULLS LAST LIMIT 5" for c in ORDERED],
    *[f"SELECT s, median({c}) FROM my.mixed GROUP BY s" for c in "itfmywz"],
    *[f"SELECT quantile_disc({c}, 0.3), quantile_cont(i, 0.3) FROM my.mixed" for c in "itumsyw"],
    *[f"SELECT sum({c}), avg({c}) FROM my.mixed" for c in "itufm"],
    *[f"SELECT s, avg({c}) FROM my.mixed GROUP BY s" for c in "itufm"],
    "SELECT sum(b) FROM my.mixed",
    *[f"SELECT s, avg({c}), stddev({c}) FROM my.mixed WHERE d > 1 AND isfinite(d) GROUP BY s" for c in "itfdm"],
    *[f"SELECT count(*) FROM my.mixed WHERE {c} = (SELECT max({c}) FROM my.mixed)" for c in "ituf" + "mbsywnzc"],
    *[f"SELECT count(*) FROM my.mixed WHERE {c} >= (SELECT median({c}) FROM my.mixed)" for c in "ifmywz"],
    "SELECT sum(sum(i)) OVER (), sum(i) // 7, median(i) % 2 FROM my.mixed",
    "SELECT bit_and(i), bit_or(i), bit_xor(i), bool_and(b), bool_or(b) FROM my.mixed",
    "SELECT list(l ORDER BY i), max(r) FROM my.mixed",
]  # fmt: skip


@pytest.fixture(scope="module")
def both() -> tuple[Oracle, LocalRun]:
    parts = []
    for rank, count in enumerate((40, 0, 25, 1)):
        made = duckdb.connect(config={"threads": "1"})
        made.execute("SET TimeZone = 'UTC'")
        columns = ", ".join(f'"{n}" {t}' for n, t in TYPES.items())
        made.execute(f"CREATE TABLE v ({columns})")
        made.execute(f"INSERT INTO v {ROWS.replace('RANGE', f'{rank * 13}, {rank * 13 + count}')}")
        parts.append(with_tags(made.sql("SELECT * FROM v").to_arrow_table(), rank, host=f"h{rank}"))
        made.close()

    oracle = Oracle({"my.mixed": pa.concat_tables(parts)})
    return oracle, LocalRun([LocalShard({"my.mixed": p}) for p in parts])


@pytest.fixture(scope="module")
def planners() -> tuple[Planner, Planner]:
    return Planner(), Planner(rules=())


@pytest.mark.parametrize("sql", QUERIES)
def test_value_of_every_type_survives(both: tuple[Oracle, LocalRun], planners: tuple[Planner, Planner], sql: str) -> None:
    oracle, run = both
    statement = Statement("q", sql)
    expected = oracle.run(statement)
    for planner in planners:
        plan = planner.plan([statement], CATALOGUE)
        answer = run.run(plan)["q"]
        assert answer.schema.types == expected.schema.types
        wrong = differences(answer, expected, plan.merges[0].columns)
        assert wrong is None, f"{wrong}\n{plan}"


def test_types_that_do_not_travel_are_known() -> None:
    for name in ("UUID", "INTERVAL", "BIT", "ENUM('a')", "JSON", "UHUGEINT", "TIME WITH TIME ZONE", '"NULL"', "HUGEINT[]"):
        assert not round_trips(name), name
    for name in (*TYPES.values(), "HUGEINT", "STRUCT(a STRUCT(b DECIMAL(4,1)[])[])"):
        assert round_trips(name), name
    assert not can_be_literal("BLOB")
    assert not can_be_literal("BIGINT[]")


def test_fields_of_a_struct_are_split_at_its_own_commas() -> None:
    assert split_fields('a BIGINT, "b, c" STRUCT(x INT, y INT[]), d DECIMAL(4,1)') == [
        "a BIGINT",
        '"b, c" STRUCT(x INT, y INT[])',
        "d DECIMAL(4,1)",
    ]
