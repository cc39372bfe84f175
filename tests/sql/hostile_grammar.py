"""Grows hostile statements: something that reads, writes, waits, runs, introspects or fills the memory (a payload), written
in a disguise, at a position of a statement, within other statements. And harmless ones of the very same shapes.

`LISTED` are many fixed ones, in which every payload, disguise, position and wrapping occurs; `hostile` draws more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle

from hypothesis import strategies as st

T = "python.torch_step_timing"

SCALARS: Sequence[tuple[str, str]] = (
    # environment, settings, session
    ("getenv", "'HOME'"), ("current_setting", "'threads'"), ("getvariable", "'x'"), ("version", ""),
    ("current_database", ""), ("current_schema", ""), ("current_schemas", "true"), ("current_query", ""),
    ("current_query_id", ""), ("current_connection_id", ""), ("txid_current", ""),
    ("in_search_path", "'memory', 'main'"), ("get_block_size", "'memory'"), ("pg_get_viewdef", "1"),
    ("pg_get_expr", "'x', 1"), ("pg_size_pretty", "1"), ("has_table_privilege", "'x', 'select'"),
    ("has_schema_privilege", "'main', 'usage'"), ("col_description", "1, 1"), ("obj_description", "1, 'x'"),
    ("inet_client_addr", ""), ("pg_postmaster_start_time", ""), ("duckdb_settings", ""),
    ("parse_duckdb_log_message", "'HTTP', 'x'"), ("hive_partition_component", "'a', 'b'"),
    # files, network, secrets, other SQL
    ("read_text", "'/etc/passwd'"), ("read_blob", "'/etc/passwd'"), ("glob", "'/**'"),
    ("which_secret", "'s3://x', 's3'"), ("json_execute_serialized_sql", "json_serialize_sql('SELECT 1')"),
    ("json_serialize_sql", "'SELECT 1'"), ("json_serialize_plan", "'SELECT 1'"), ("json_deserialize_sql", "'{}'"),
    ("query", "'SELECT 1'"), ("query_table", "'x'"), ("load_extension", "'httpfs'"), ("write_log", "'x'"),
    ("parquet_metadata", "'x'"), ("http_get", "'http://127.0.0.1'"), ("st_read", "'x'"), ("loadenv", "'x'"),
    ("system", "'id'"), ("shell", "'id'"), ("pg_read_file", "'/etc/passwd'"), ("lo_import", "'/etc/passwd'"),
    ("load_file", "'/etc/passwd'"), ("xp_cmdshell", "'id'"),
    # waits, chance, sequences
    ("sleep_ms", "60000"), ("pg_sleep", "60"), ("random", ""), ("uuid", ""), ("gen_random_uuid", ""),
    ("setseed", "0.5"), ("nextval", "'s'"), ("currval", "'s'"), ("error", "'x'"),
    # memory
    ("repeat", "'x', 1000000000"), ("list_resize", "[1], 1000000000"), ("array_resize", "[1], 1000000000"),
    ("lpad", "'x', 1000000000, 'y'"), ("rpad", "'x', 99999, 'y'"), ("range", "100000000000"),
    ("generate_series", "1, 100000000000"), ("bitstring", "'1', 100000000"), ("format", "'{:>1000000000}', 'x'"),
    ("printf", "'%1000000000d', 1"), ("to_base", "1, 2, 100000000"), ("bar", "1, 0, 2, 1000000000"),
    ("equi_width_bins", "0, 10, 100000000, true"), ("generate_subscripts", "[1], 1"),
    # internals
    ("combine", "x, x"), ("finalize", "x"), ("to_aggregate_state", "x, 'sum', ['BIGINT'], []"),
    ("create_sort_key", "1, 'ASC'"), ("stats", "1"), ("vector_type", "1"), ("cast_to_type", "1, 2"),
    ("can_cast_implicitly", "1, 2"), ("enum_range", "NULL"), ("constant_or_null", "1, 2"),
    ("__internal_compress_string_utinyint", "'x'"),
)  # fmt: skip

TABLES: Sequence[str] = (
    "read_csv('/etc/passwd')", "read_csv_auto('/etc/passwd')", "read_text('/etc/passwd')",
    "read_blob('/etc/passwd')", "read_parquet('https://example.org/x.parquet')", "read_parquet(['s3://b/x'])",
    "parquet_scan('x.parquet')", "parquet_metadata('x')", "parquet_schema('x')", "parquet_file_metadata('x')",
    "parquet_kv_metadata('x')", "parquet_bloom_probe('x', 'a', 1)", "read_json('/etc/passwd')",
    "read_json_auto('x')", "read_json_objects('x')", "read_ndjson('x')", "read_ndjson_auto('x')",
    "read_ndjson_objects('/etc/passwd')", "sniff_csv('/etc/passwd')", "glob('/**')", "read_duckdb('x.db')",
    "read_xlsx('x.xlsx')", "st_read('x')", "sqlite_scan('x', 'y')", "postgres_scan('', '', '')",
    "mysql_query('', '')", "iceberg_scan('x')", "delta_scan('x')", "arrow_scan(1, 2, 3)", "pandas_scan(1)",
    "python_map_function(1)", "duckdb_settings()", "duckdb_secrets()", "duckdb_tables()", "duckdb_columns()",
    "duckdb_functions()", "duckdb_logs()", "duckdb_log_contexts()", "duckdb_logs_parsed('HTTP')", "duckdb_memory()",
    "duckdb_databases()", "duckdb_extensions()", "duckdb_external_file_cache()", "duckdb_temporary_files()",
    "duckdb_variables()", "duckdb_views()", "duckdb_keywords()", "duckdb_optimizers()",
    "duckdb_prepared_statements()", "pragma_version()", "pragma_database_size()", "pragma_show('x')",
    "pragma_table_info('x')", "pragma_storage_info('x')", "pragma_user_agent()", "pragma_platform()",
    "pragma_collations()", "pg_timezone_names()", "icu_calendar_names()", "which_secret('s3://x', 's3')",
    "query('SELECT 1')", "query_table('x')", "query_table(['x', 'y'])", "json_execute_serialized_sql('{}')",
    "test_all_types()", "test_vector_types(NULL::INT)", "repeat(0, 1000000000)",
    "repeat_row(1, num_rows = 1000000000)", "range(1000000000000)", "generate_series(0, 1000000000000)",
    "generate_series(TIMESTAMP '2020-01-01', TIMESTAMP '2030-01-01', INTERVAL 1 ms)", "seq_scan('x')",
    "index_scan('x')", "checkpoint()", "force_checkpoint()", "enable_logging()", "set_log_storage('x')",
    "truncate_duckdb_logs()", "summary((SELECT 1))", "unnest(getenv('HOME'))", "sql_auto_complete('SELECT')",
    "load_aws_credentials()", "'/etc/passwd'", "'x.csv'", "'x.parquet'", "'https://example.org/x.csv'",
    "'s3://bucket/*.parquet'", "'/proc/self/environ'", '"/etc/passwd"', '"x.csv"', '"/proc/self/environ"',
    "sqlite_master", "sqlite_schema", "pg_catalog.pg_class", "pg_catalog.pg_settings",
    "system.main.duckdb_settings", "system.information_schema.tables", "memory.main.x", "temp.main.x",
    '"memory"."python"."torch_step_timing"', "duckdb_settings", "duckdb_secrets", "main.duckdb_tables",
    "data.\"python.torch_step_timing\"", "lives", "rank_rows", "\"v:python.torch_step_timing\"", "arrow_lives",
)  # fmt: skip

STATEMENTS: Sequence[str] = (
    "COPY python.torch_step_timing TO '/tmp/x'", "COPY (SELECT 1) TO '/tmp/x' (FORMAT csv)",
    "COPY x FROM '/etc/passwd'", "COPY FROM DATABASE memory TO x", "ATTACH '/tmp/x.db' AS x", "ATTACH ':memory:'",
    "ATTACH 'http://127.0.0.1/x.db'", "DETACH global", "EXPORT DATABASE '/tmp/x'", "IMPORT DATABASE '/tmp/x'",
    "INSTALL httpfs", "FORCE INSTALL httpfs", "INSTALL 'https://example.org/x.duckdb_extension'", "LOAD httpfs",
    "LOAD '/tmp/x.duckdb_extension'", "UPDATE EXTENSIONS", "CREATE SECRET s (TYPE s3)",
    "CREATE PERSISTENT SECRET s (TYPE http)", "DROP SECRET s", "SET threads = 1", "SET GLOBAL memory_limit = '1TB'",
    "SET SESSION TimeZone = 'UTC'", "SET VARIABLE x = 1", "SET VARIABLE x = (SELECT 1)",
    "SET enable_external_access = true", "SET lock_configuration = false", "RESET threads", "RESET VARIABLE x",
    "PRAGMA database_list", "PRAGMA version", "PRAGMA threads = 4", "PRAGMA table_info('x')",
    "PRAGMA enable_profiling", "CALL pragma_version()", "CALL duckdb_settings()", "CALL enable_logging()",
    "CALL checkpoint()", "CHECKPOINT", "FORCE CHECKPOINT", "VACUUM", "ANALYZE", "BEGIN", "BEGIN TRANSACTION",
    "COMMIT", "ROLLBACK", "ABORT", "USE memory", "PREPARE p AS SELECT 1", "EXECUTE p", "EXECUTE p(1)",
    "DEALLOCATE p", "DESCRIBE python.torch_step_timing", "DESCRIBE SELECT 1", "SHOW TABLES", "SHOW ALL TABLES",
    "SHOW DATABASES", "SUMMARIZE python.torch_step_timing", "EXPLAIN SELECT 1", "EXPLAIN ANALYZE SELECT 1",
    "EXPLAIN (FORMAT json) SELECT 1", "CREATE TABLE x AS SELECT 1", "CREATE TEMP TABLE x (a INT)",
    "CREATE OR REPLACE VIEW x AS SELECT 1", "CREATE SCHEMA x", "CREATE SEQUENCE s", "CREATE TYPE t AS ENUM ('a')",
    "CREATE MACRO m(a) AS a", "CREATE FUNCTION f(a) AS TABLE SELECT 1", "CREATE INDEX i ON x (a)",
    "ALTER TABLE x ADD COLUMN b INT", "ALTER DATABASE memory RENAME TO x", "DROP TABLE python.torch_step_timing",
    "DROP SCHEMA python CASCADE", "TRUNCATE x", "DELETE FROM python.torch_step_timing", "INSERT INTO x VALUES (1)",
    "INSERT INTO x SELECT 1", "INSERT OR REPLACE INTO x SELECT 1", "UPDATE x SET a = 1",
    "MERGE INTO x USING y ON true WHEN MATCHED THEN DELETE", "COMMENT ON TABLE x IS 'a'", "TABLE x",
    "PIVOT python.torch_step_timing ON phase", "UNPIVOT python.torch_step_timing ON rank INTO NAME n VALUE v",
    "SELECT 1; SELECT 2", "SELECT 1;; DROP TABLE x", "VALUES (1); SELECT 1", "GRANT ALL ON x TO y", "KILL 1",
    ".shell id", "\\! id", "!id", "DO $$ x $$", "DECLARE c CURSOR FOR SELECT 1", "LISTEN x", "LOCK TABLE x",
    "WITH x AS (INSERT INTO y VALUES (1) RETURNING *) SELECT * FROM x",
    "WITH x AS (DELETE FROM y RETURNING *) SELECT * FROM x", "SELECT 1 INTO x",
    "SELECT * FROM python.torch_step_timing FOR UPDATE", "SELECT * FROM (DESCRIBE python.torch_step_timing)",
    "SELECT * FROM (SHOW TABLES)", "FROM (SUMMARIZE python.torch_step_timing)", "SELECT * FROM (SHOW ALL TABLES)",
    "FROM python.torch_step_timing TABLESAMPLE 10%", "SELECT * FROM python.torch_step_timing USING SAMPLE 3",
    "SELECT current_user",
    "SELECT \"current_user\"", "SELECT \"current_catalog\", \"Current_Schema\"", "SELECT session_user",
    "SELECT user", "SELECT current_role", "SELECT current_catalog",
    "SELECT #1 FROM python.torch_step_timing", "SELECT * FROM python.torch_step_timing AT (VERSION => 1)",
    "SELECT * FROM python.torch_step_timing POSITIONAL JOIN python.torch_step_timing",
    "SELECT list_aggregate([1], 'getenv')", "SELECT list_aggr([1], op) FROM python.torch_step_timing",
    "SELECT sum(rank) EXPORT_STATE FROM python.torch_step_timing; SELECT 1", "SELECT ?::INT; SET threads = 1",
)  # fmt: skip

SHADOWS: Sequence[str] = (
    "SELECT * FROM {0}, (WITH {0} AS (SELECT 1) SELECT * FROM {0}) AS q",
    "SELECT (WITH {0} AS (SELECT 1) SELECT 1) FROM {0}",
    "WITH a AS (SELECT * FROM {0}), {0} AS (SELECT 1) SELECT * FROM a",
    "WITH RECURSIVE a AS (SELECT * FROM {0}), {0} AS (SELECT 1) SELECT * FROM a",
    "WITH {0} AS (SELECT * FROM {0}) SELECT * FROM {0}",
    "WITH RECURSIVE {0} AS (SELECT * FROM {0}) SELECT * FROM {0}",
    "(WITH {0} AS (SELECT 1) SELECT * FROM {0}) UNION ALL SELECT 1 FROM {0}",
    "SELECT 1 FROM {t} WHERE EXISTS (WITH {0} AS (SELECT 1) SELECT 1) AND 1 IN (SELECT 1 FROM {0})",
    "WITH a AS (WITH {0} AS (SELECT 1) SELECT * FROM {0}) SELECT * FROM a, {0}",
    "SELECT 1 FROM {t} AS {0}, {0} AS q",
)
"""Names of a WITH clause that is not in sight where a table of the engine's own has the same name."""
OWN_TABLES: Sequence[str] = (
    "sqlite_master", "duckdb_tables", "duckdb_logs", "pragma_database_list", "lives", "rank_rows", "pg_class",
    '"/etc/passwd"',
    '"x.csv"', '"v:process.rank"', "duckdb_views", "SQLITE_SCHEMA", "exit_rows", "arrow_lives",
)  # fmt: skip

EXPRESSION_PLACES: Sequence[str] = (
    "SELECT {0}", "SELECT {0} AS x FROM {t}", "SELECT 1 FROM {t} WHERE {0} IS NOT NULL",
    "SELECT 1 FROM {t} WHERE ({0})::VARCHAR = 'x'", "SELECT rank FROM {t} GROUP BY rank, {0}",
    "SELECT rank FROM {t} GROUP BY rank HAVING max({0}) IS NULL", "SELECT rank FROM {t} ORDER BY {0}",
    "SELECT rank FROM {t} ORDER BY rank LIMIT 1 OFFSET (SELECT length(({0})::VARCHAR))",
    "SELECT rank FROM {t} QUALIFY row_number() OVER (ORDER BY {0}) = 1",
    "SELECT max({0}) OVER (PARTITION BY rank) FROM {t}", "SELECT count(*) OVER (PARTITION BY {0}) FROM {t}",
    "SELECT sum(rank) OVER w FROM {t} WINDOW w AS (ORDER BY {0})",
    "SELECT count(*) FILTER (WHERE {0} IS NULL) FROM {t}", "SELECT list(rank ORDER BY {0}) FROM {t}",
    "SELECT CASE WHEN rank = 0 THEN {0} END FROM {t}", "SELECT coalesce(NULL, {0})", "SELECT [{0}]",
    "SELECT {{'a': {0}}}", "SELECT MAP {{'a': {0}}}", "SELECT ({0}, 1)", "SELECT ({0})::VARCHAR",
    "SELECT TRY_CAST({0} AS VARCHAR)", "SELECT list_transform([1, 2], lambda x: {0})",
    "SELECT list_filter([1], lambda x: ({0}) IS NULL)", "SELECT [{0} FOR x IN [1, 2]]",
    "SELECT list_reduce([1, 2], lambda x, y: length(({0})::VARCHAR))", "SELECT ({0}) IN ('a', 'b')",
    "SELECT 1 IN (SELECT {0})", "SELECT rank BETWEEN 0 AND length(({0})::VARCHAR) FROM {t}",
    "SELECT ({0})::VARCHAR LIKE 'a%'", "SELECT 'x' || ({0})::VARCHAR", "SELECT ({0})::VARCHAR COLLATE nocase",
    "SELECT * REPLACE (({0})::VARCHAR AS phase) FROM {t}",
    "SELECT a.rank FROM {t} a JOIN {t} b ON a.rank = b.rank AND ({0}) IS NULL",
    "SELECT a.* FROM {t} a LEFT JOIN {t} b ON ({0}) IS NULL", "SELECT * FROM (VALUES ({0}))",
    "SELECT * FROM (VALUES (1), (length(({0})::VARCHAR)))", "VALUES ({0})",
    "WITH q AS (SELECT {0} AS x) SELECT * FROM q",
    "WITH q AS MATERIALIZED (SELECT {0} AS x) SELECT count(*) FROM q",
    "WITH q AS (SELECT 1), r AS (SELECT {0}) SELECT * FROM q", "SELECT (SELECT {0})", "SELECT EXISTS (SELECT {0})",
    "SELECT ARRAY(SELECT {0})", "SELECT * FROM {t} a WHERE EXISTS (SELECT 1 WHERE a.rank = 1 AND ({0}) IS NULL)",
    "SELECT 1 UNION ALL SELECT length(({0})::VARCHAR)", "SELECT ({0})::VARCHAR EXCEPT SELECT 'x'",
    "SELECT ({0})::VARCHAR INTERSECT SELECT 'x'", "SELECT * FROM {t} a, LATERAL (SELECT {0} AS x) b",
    "SELECT DISTINCT {0} FROM {t}", "SELECT DISTINCT ON ({0}) rank FROM {t}",
    "SELECT rank FROM {t} GROUP BY ROLLUP (rank, {0})",
    "SELECT rank FROM {t} GROUP BY GROUPING SETS ((rank), ({0}))", "SELECT INTERVAL (length(({0})::VARCHAR)) DAY",
    "SELECT [1, 2, 3][length(({0})::VARCHAR)]", "SELECT [1, 2][1:length(({0})::VARCHAR)]",
    "SELECT extract('year' FROM TRY_CAST({0} AS DATE))", "SELECT -length(({0})::VARCHAR)",
    "SELECT NOT (({0}) IS NULL)", "FROM {t} SELECT {0}", "FROM (SELECT {0} AS x) SELECT x",
    "SELECT x FROM (SELECT 1) AS q(x) ORDER BY x, {0}",
    "SELECT rank FROM {t} ORDER BY ALL LIMIT (SELECT length(({0})::VARCHAR))",
    "SELECT COLUMNS('rank') FROM {t} WHERE ({0}) IS NULL", "SELECT COLUMNS(lambda c: c = ({0})::VARCHAR) FROM {t}",
    "SELECT unnest([{0}])", "SELECT x FROM unnest([{0}]) AS u(x)",
    "WITH RECURSIVE q AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM q WHERE n < 3 AND ({0}) IS NULL) SELECT * FROM q",
    "SELECT lag(rank, 1, length(({0})::VARCHAR)) OVER (ORDER BY rank) FROM {t}",
    "SELECT quantile_cont(rank, 0.5) FILTER (({0}) IS NULL) FROM {t}",
    "SELECT sum(rank) OVER (ORDER BY rank ROWS BETWEEN length(({0})::VARCHAR) PRECEDING AND CURRENT ROW) FROM {t}",
)  # fmt: skip
"""`{0}` is an expression of any type, `{t}` a table."""

RELATION_PLACES: Sequence[str] = (
    "SELECT * FROM {0}", "FROM {0}", "FROM {0} SELECT 1", "SELECT 1 FROM {t}, {0}", "SELECT 1 FROM {0}, {t}",
    "SELECT 1 FROM {t} CROSS JOIN {0}", "SELECT 1 FROM {t} a JOIN {0} b ON true",
    "SELECT 1 FROM {t} LEFT JOIN {0} ON true", "SELECT a.rank FROM {t} a SEMI JOIN {0} b ON true",
    "SELECT a.rank FROM {t} a ANTI JOIN {0} b ON true", "SELECT 1 FROM {t} a, LATERAL (SELECT 1 FROM {0}) b",
    "SELECT 1 FROM (SELECT 1 FROM {0}) q",  "SELECT 1 FROM ({t} CROSS JOIN {0})",
    "WITH q AS (SELECT 1 FROM {0}) SELECT * FROM q", "WITH q AS (FROM {0}) SELECT 1 FROM q",
    "WITH q AS NOT MATERIALIZED (SELECT 1 FROM {0}) SELECT 2",
    "WITH a AS (SELECT 1), b AS (SELECT 1 FROM {0}) SELECT 1 FROM a, b",
    "WITH RECURSIVE q AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM q, {0} WHERE n < 3) SELECT * FROM q",
    "SELECT (SELECT 1 FROM {0})", "SELECT EXISTS (FROM {0})", "SELECT ARRAY(SELECT 1 FROM {0})",
    "SELECT 1 IN (SELECT 1 FROM {0})", "SELECT 1 = ANY (SELECT 1 FROM {0})", "SELECT 1 UNION SELECT 1 FROM {0}",
    "SELECT 1 UNION ALL BY NAME SELECT 1 FROM {0}", "SELECT 1 EXCEPT ALL SELECT 1 FROM {0}",
    "SELECT 1 INTERSECT (SELECT 1 FROM {0})", "(SELECT 1 FROM {0})", "(FROM {0}) UNION (FROM {0})",
    "SELECT 1 FROM {t} WHERE rank > (SELECT count(*) FROM {0})", "SELECT 1 FROM {t} ORDER BY (SELECT 1 FROM {0})",
    "SELECT 1 LIMIT (SELECT count(*) FROM {0})", "SELECT CASE WHEN EXISTS (SELECT 1 FROM {0}) THEN 1 END",
    "SELECT 1 FROM {t} QUALIFY row_number() OVER () > (SELECT count(*) FROM {0})",
    "SELECT count(*) FILTER (WHERE 1 IN (SELECT 1 FROM {0})) FROM {t}",
    "SELECT [x FOR x IN [1] IF x IN (SELECT 1 FROM {0})]", "SELECT COLUMNS(*) FROM {0}",
    "SELECT * EXCLUDE (x) FROM {0}", "SELECT q.* FROM {0} AS q", "SELECT x FROM {0} AS q(x)",
    "SELECT 1 FROM {t} GROUP BY (SELECT 1 FROM {0})",
    "SELECT 1 FROM {t} HAVING count(*) > (SELECT count(*) FROM {0})", "VALUES ((SELECT 1 FROM {0}))",
    "SELECT unnest((SELECT [1] FROM {0}))",
)  # fmt: skip

WRAPS: Sequence[str] = (
    "{0}", "{0};", "/* a */ {0} -- b", "\n\t{0}\n", "SELECT * FROM ({0}) AS w", "WITH w AS ({0}) SELECT * FROM w",
    "WITH w AS ({0}) SELECT 1", "SELECT 1 FROM {t} WHERE EXISTS ({0})", "({0}) LIMIT 1",
    "SELECT 1 WHERE 1 IN (SELECT 1 FROM ({0}) AS w)", "SELECT (SELECT count(*) FROM ({0}) AS w)",
    "SELECT count(*) FROM {t} a, LATERAL (SELECT * FROM ({0}) AS v) w",
    "SELECT 1 FROM (SELECT 1 FROM ({0}) AS v) AS w",
    "WITH v AS (WITH w AS ({0}) SELECT * FROM w) SELECT count(*) FROM v",
)  # fmt: skip
STATEMENT_WRAPS: Sequence[str] = (
    "{0}", "{0};", "/* SELECT 1 */ {0}", "-- SELECT\n{0}", "\n\t{0}", "SELECT 1; {0}", "{0}; SELECT 1",
    "EXPLAIN {0}", "EXPLAIN ANALYZE {0}", "PREPARE p AS {0}", "WITH q AS ({0}) SELECT * FROM q",
    "SELECT * FROM ({0})", "({0})", "DESCRIBE {0}", ";{0};", "SELECT 1 UNION {0}",
)  # fmt: skip

Disguise = Callable[[str, str], str]
DISGUISES: Sequence[Disguise] = (
    lambda name, args: f"{name}({args})",
    lambda name, args: f"{name.upper()}({args})",
    lambda name, args: f"{name.title()} ( {args} )",
    lambda name, args: f'"{name}"({args})',
    lambda name, args: f"main.{name}({args})",
    lambda name, args: f'system."main".{name}({args})',
    lambda name, args: f"pg_catalog.{name}({args})",
    lambda name, args: f"{name}/**/({args})",
    lambda name, args: f"{name} -- (\n({args})",
    lambda name, args: f"({name}({args}))",
    lambda name, args: _dot(name, args),
    lambda name, args: f"{name}({args.replace(chr(39), '$$')})",
    lambda name, args: f"{name}({_escaped(args)})",
    lambda name, args: f"{name}({', '.join(f'({a})' for a in _parts(args))})",
    lambda name, args: f"{name[0].upper()}{name[1:]}\n({args}\n)",
)


def _parts(args: str) -> list[str]:
    """Arguments, apart where that is plain to see."""
    return [args] if "(" in args or "[" in args or "{" in args else [a.strip() for a in args.split(",") if a.strip()]


def _dot(name: str, args: str) -> str:
    first, *rest = _parts(args) or [""]
    return f"({first}).{name}({', '.join(rest)})" if first and len(_parts(args)) < 2 else f"{name}({args})"


def _escaped(args: str) -> str:
    return "E" + args.replace("/", "\\x2f") if args.startswith("'") else args


def _placed(place: str, payload: str) -> str:
    return place.format(payload, t=T)


def expressions(payloads: Sequence[tuple[str, str]] = SCALARS) -> Iterable[str]:
    """Every payload, each in another disguise and place, and every place and disguise at least once."""
    places, disguises, wraps = cycle(EXPRESSION_PLACES), cycle(DISGUISES), cycle([WRAPS[0], WRAPS[0], *WRAPS])
    for (name, args), _ in zip(cycle(payloads), range(max(len(payloads), len(EXPRESSION_PLACES)) * 2), strict=False):
        yield _placed(next(wraps), _placed(next(places), next(disguises)(name, args)))


def relations(payloads: Sequence[str] = TABLES) -> Iterable[str]:
    """The same of what stands for a table."""
    places, wraps = cycle(RELATION_PLACES), cycle([WRAPS[0], WRAPS[0], *WRAPS])
    for payload, _ in zip(cycle(payloads), range(max(len(payloads), len(RELATION_PLACES)) * 2), strict=False):
        yield _placed(next(wraps), _placed(next(places), payload))


def shadows() -> Iterable[str]:
    """Every shadow with several of the engine's own tables."""
    for i, shadow in enumerate(SHADOWS):
        for name in OWN_TABLES[i % 2 :: 2]:
            yield _placed(shadow, name)


def whole_statements() -> Iterable[str]:
    """What is no SELECT, or no plain one."""
    yield from STATEMENTS
    for statement, wrap in zip(STATEMENTS, cycle(STATEMENT_WRAPS), strict=False):
        yield wrap.format(statement)


LISTED: Sequence[str] = tuple(dict.fromkeys([*expressions(), *relations(), *shadows(), *whole_statements()]))


@st.composite
def hostile(draw: st.DrawFn) -> str:
    """One hostile statement, up to three statements deep."""
    kind = draw(st.sampled_from(["expression", "expression", "relation", "shadow", "statement"]))
    if kind == "statement":
        return draw(st.sampled_from(STATEMENT_WRAPS)).format(draw(st.sampled_from(STATEMENTS)))
    if kind == "expression":
        payload = draw(st.sampled_from(DISGUISES))(*draw(st.sampled_from(SCALARS)))
        sql = _placed(draw(st.sampled_from(EXPRESSION_PLACES)), payload)
    elif kind == "shadow":
        sql = _placed(draw(st.sampled_from(SHADOWS)), draw(st.sampled_from(OWN_TABLES)))
    else:
        sql = _placed(draw(st.sampled_from(RELATION_PLACES)), draw(st.sampled_from(TABLES)))
    for wrap in draw(st.lists(st.sampled_from(WRAPS), max_size=3)):
        if ";" in sql or "--" in sql or "/*" in sql:
            break
        sql = _placed(wrap, sql)
    return sql


HARMLESS_EXPRESSIONS = (
    ("abs", "-1"),
    ("upper", "'a'"),
    ("length", "'getenv'"),
    ("concat", "'read_csv', '/etc/passwd'"),
    ("pi", ""),
    ("md5", "'COPY x'"),
)
HARMLESS_RELATIONS = (T, "global.python.torch_step_timing", f"(SELECT 1 AS x FROM {T})")


NOT_YET = ("VALUES", "SELECT ARRAY(")
"""Places at which harmless things are refused too, with a hint: what they say can be written as a plain SELECT."""


def harmless_expressions() -> Iterable[str]:
    """Every place of an expression, with something that does no harm in it."""
    for place, (name, args) in zip(EXPRESSION_PLACES, cycle(HARMLESS_EXPRESSIONS), strict=False):
        if not place.startswith(NOT_YET):
            yield _placed(place, f"{name}({args})")


def harmless_relations() -> Iterable[str]:
    """Every place of a table, with a table in it."""
    for place, payload in zip(RELATION_PLACES, cycle(HARMLESS_RELATIONS), strict=False):
        if not place.startswith(NOT_YET):
            yield _placed(place, payload)
