"""The one way in which DuckDB is opened: what works there, and what does not."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from muster.engine import PROFILE, arrow_of, arrow_schema, open_engine, profile_of


@pytest.fixture
def engine() -> duckdb.DuckDBPyConnection:
    return open_engine(memory_limit="128MB", threads=1)


def test_tables_can_be_made_and_arrow_registered(engine: duckdb.DuckDBPyConnection) -> None:
    cursor = engine.cursor()
    cursor.register("given", pa.table({"a": [1, 2, 3]}))
    cursor.execute("CREATE TABLE t AS SELECT * FROM given")
    assert arrow_of(cursor, "SELECT sum(a) AS s FROM t").to_pylist() == [{"s": 6}]


def test_the_profile_is_in_force(engine: duckdb.DuckDBPyConnection) -> None:
    assert profile_of(engine) == dict(PROFILE)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM glob('/*')",
        "COPY (SELECT 1) TO '{file}.out'",
        "ATTACH '{file}.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 8",
        "SET memory_limit = '100GB'",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "PRAGMA temp_directory='{file}'",
        "CREATE SECRET s (TYPE s3)",
        "EXPORT DATABASE '{file}'",
    ],
)
def test_files_network_extensions_and_settings_are_out_of_reach(
    engine: duckdb.DuckDBPyConnection, tmp_path: Path, sql: str
) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(duckdb.Error):
        engine.cursor().execute(sql.format(file=file)).fetchall()
    assert [p.name for p in tmp_path.iterdir()] == ["secret.csv"]


def test_python_variables_are_not_tables(engine: duckdb.DuckDBPyConnection) -> None:
    hidden = pa.table({"a": [1]})
    assert hidden.num_rows == 1
    with pytest.raises(duckdb.CatalogException):
        engine.cursor().execute("SELECT * FROM hidden")


def test_it_does_not_spill_to_disk_but_stops_at_its_memory_limit() -> None:
    small = open_engine(memory_limit="32MB", threads=1)
    with pytest.raises(duckdb.OutOfMemoryException):
        small.cursor().execute("SELECT array_agg(i) FROM range(20000000) t(i)").fetchall()


def test_the_arrow_schema_of_columns_is_the_engines_own(engine: duckdb.DuckDBPyConnection) -> None:
    found = arrow_schema(engine, {"a": "BIGINT", "h": "HUGEINT", "l": "DOUBLE[]", 'q"': "VARCHAR"})
    assert found.field("a").type == pa.int64()
    assert found.field("h").type == pa.decimal128(38, 0)
    assert pa.types.is_list(found.field("l").type)
    assert found.names[-1] == 'q"'
