"""The one way in which Muster opens DuckDB: in memory, without files, network, extensions or settings that can be changed.

Gateway and agents use the same profile, so that the same SQL means the same on both; it is exchanged in the handshake.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from muster.errors import ConfigError

PROFILE: Mapping[str, str] = {
    "TimeZone": "UTC",
    "default_collation": "",
    "default_null_order": "NULLS_LAST",
    "default_order": "ASCENDING",
}
"""Settings that decide what an answer means."""

_HARDENING: Mapping[str, bool | int | str] = {
    "temp_directory": "",  # first: it cannot be changed once external access is off
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    "produce_arrow_string_view": False,
    "arrow_lossless_conversion": False,
}

_ARROW: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "HUGEINT": pa.decimal128(38, 0),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
}


def engine_name() -> str:
    """Name and version as they appear in the handshake, such as `duckdb 2.0.1`."""
    return f"duckdb {duckdb.__version__}"


def open_engine(*, memory_limit: str = "1GB", threads: int = 1) -> duckdb.DuckDBPyConnection:
    """A hardened in-memory database. Use one `cursor()` of it per request and per thread.

    `memory_limit` as DuckDB takes it (`512MB`). Tables can be made and Arrow registered; files, network, extensions,
    secrets and changes of settings cannot be reached. Raises ConfigError when a setting is not in force.
    """
    connection = duckdb.connect(":memory:", config={"memory_limit": memory_limit, "threads": threads})
    for name, value in {**PROFILE, **_HARDENING}.items():
        if name == "default_order":
            continue  # the engine's default, but set by hand it reads back under another name
        connection.execute(f"SET GLOBAL {name} = {_literal(value)}")
    connection.execute("SET GLOBAL disabled_filesystems = 'LocalFileSystem'")
    connection.execute("SET GLOBAL lock_configuration = true")
    _verify(connection)
    return connection


def profile_of(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """The profile that is in force on a connection, read back from it."""
    return {name: str(_setting(connection, name)) for name in PROFILE}


def arrow_type(duckdb_type: str) -> pa.DataType | None:
    """The Arrow type in which DuckDB exports a column of this type; None where only DuckDB itself can tell (nested types,
    decimals of any width, timestamps): see `arrow_schema`."""
    return _ARROW.get(duckdb_type.upper())


def arrow_schema(connection: duckdb.DuckDBPyConnection, columns: Mapping[str, str]) -> pa.Schema:
    """The Arrow schema in which DuckDB exports columns of these names and DuckDB types; asks the engine itself."""
    if not columns:
        return pa.schema([])
    parts = ", ".join(f"CAST(NULL AS {kind}) AS {quote(name)}" for name, kind in columns.items())
    return arrow_of(connection.cursor(), f"SELECT {parts} LIMIT 0").schema


def arrow_of(cursor: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """The answer to one SELECT as an Arrow table. Raises what DuckDB raises."""
    relation = cursor.sql(sql)
    if relation is None:
        raise duckdb.InvalidInputException("not a SELECT")
    table: pa.Table = relation.to_arrow_table()
    return table


def quote(name: str) -> str:
    """An SQL identifier in quotes."""
    return '"' + name.replace('"', '""') + '"'


def _literal(value: bool | int | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _setting(connection: duckdb.DuckDBPyConnection, name: str) -> object:
    row = connection.execute("SELECT current_setting(?)", [name]).fetchone()
    return row[0] if row else None


def _verify(connection: duckdb.DuckDBPyConnection) -> None:
    expected: dict[str, object] = {**PROFILE, **_HARDENING, "lock_configuration": True}
    for name, value in expected.items():
        found = _setting(connection, name)
        if found != value:
            raise ConfigError(
                f"DuckDB setting {name} is {found!r} and not {value!r}.",
                hint=f"Muster needs duckdb 2.0.x; installed is {duckdb.__version__}.",
            )
