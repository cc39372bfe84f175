"""Which functions a statement may call: the engine's own catalogue minus what is not a pure function of its arguments.

The list is derived, not written: `duckdb_functions()` of the engine that will run the statement, scalar, aggregate and
window functions and macros, without

- whatever the engine itself calls volatile (`random()`, `nextval()`, `sleep_ms()`, …);
- what reads or writes settings, sessions, catalogues, variables, logs or sequences, or waits;
- what runs SQL held in a text;
- what allocates by the value of an argument (`repeat`, `range`, `list_resize`, …), unless the argument is a small literal;
- the engine's internals, among them whatever rebuilds aggregate states from bytes that a user could have made up.

Table functions are refused but for `unnest`, and `range` and `generate_series` with small literals.
A test pins the derived list, so that a new engine cannot add to it unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import duckdb


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_PREFIXES = ("__", "pg_", "has_", "inet_", "icu_", "collate_", "duckdb_", "st_", "json_serialize", "json_deserialize",
             "json_execute", "json_copy", "uuidv", "variant_to_parquet", "variant_bytes")  # fmt: skip

_SESSION = words(
    """current_setting current_schema current_schemas current_database current_catalog current_user current_role
    current_query current_query_id current_connection_id current_transaction_id session_user user txid_current version
    in_search_path getvariable getenv get_block_size nextval currval setval setseed write_log parse_duckdb_log_message
    col_description obj_description shobj_description map_to_pg_oid map_type_id_to_pg_oid format_pg_type format_type
    hive_partition_component can_cast_implicitly cast_to_type replace_type"""
)
_WAITS = frozenset({"sleep_ms", "pg_sleep"})
_RUNS_SQL = frozenset({"query", "query_table", "json_execute_serialized_sql", "invoke"})
_RANDOM = frozenset({"random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "setseed", "reservoir_quantile"})
_ALLOCATES = words(
    """repeat list_resize array_resize bitstring bitstring_agg equi_width_bins to_base bar range generate_series
    enum_range enum_range_boundary generate_subscripts"""
)
_INTERNAL = words(
    """combine combine_aggr finalize to_aggregate_state create_sort_key index_key stats vector_type error assert_true
    constant_or_null decimal_division decimal_average count_star make_type get_type variant_comparator
    bitstring_byte_comparable timetz_byte_comparable variant_normalize is_histogram_other_bin
    unpivot_list remap_struct write_log kahan_sum sum_no_overflow array_reduce_internal"""
)
AGGREGATE_MACROS = words(
    """geomean geometric_mean wavg weighted_avg json_group_array json_group_object json_group_structure
    variant_group_array"""
)
"""Macros that stand for an aggregate."""
BOUNDED = {"lpad": 1, "rpad": 1, "approx_top_k": 1}
"""Allowed where the argument of this index is an integer literal of at most `BOUND`."""
BOUND = 4096
FORMATS = frozenset({"format", "printf"})
"""Allowed where the format is a literal without large widths: a width is an allocation."""
CLOCK_FUNCTIONS = words(
    """now get_current_timestamp transaction_timestamp current_date today get_current_time current_time current_timestamp
    current_localtime current_localtimestamp localtime localtimestamp"""
)
"""The clock: frozen once per request."""
TABLE_FUNCTIONS = frozenset({"unnest", "range", "generate_series"})
MAX_SERIES = 100_000
"""Most rows of a `range` or `generate_series`."""


_FIXED = words(
    """BOOLEAN TINYINT SMALLINT INTEGER BIGINT HUGEINT UTINYINT USMALLINT UINTEGER UBIGINT UHUGEINT FLOAT DOUBLE DECIMAL
    DATE TIME TIMESTAMP INTERVAL UUID TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS"""
) | {"TIMESTAMP WITH TIME ZONE", "TIME WITH TIME ZONE"}
_OWN_SYNTAX = words("array columns grouping grouping_id unnest coalesce ifnull nullif row try")
"""Written like calls, but no entries of the catalogue."""


@dataclass(frozen=True, slots=True)
class Functions:
    """What may be called, all in lower case."""

    scalar: frozenset[str]
    aggregate: frozenset[str]
    window: frozenset[str]
    known: frozenset[str]  # whatever the engine has, allowed or not: to tell "forbidden" from "unknown"
    small: frozenset[str]  # those whose value has a fixed size, whatever their arguments

    @property
    def allowed(self) -> frozenset[str]:
        return self.scalar | self.aggregate | self.window


def _has_fixed_size(kind: str | None) -> bool:
    return kind is not None and kind.partition("(")[0] in _FIXED and "[" not in kind


def denial(name: str) -> str | None:
    """Why a function is never allowed, as a sentence with a way out; None where it is not on a list."""
    if name in _RANDOM:
        return "Its value differs from call to call, so an answer over many ranks could not be repeated."
    if name == "ago":
        return "It reads the clock where it runs. Write now() - INTERVAL '…'."
    if name == "regexp_split_to_table":
        return "It makes rows. Write unnest(regexp_split_to_array(…))."
    if name in _WAITS:
        return "It waits."
    if name in _RUNS_SQL:
        return "It runs SQL that is held in a text. Write the SQL into the statement."
    if name in _ALLOCATES:
        return "It allocates by the value of its argument, without bound."
    if name in _SESSION:
        return "It reads or changes the session, the settings or the catalogue of the engine."
    if name in _INTERNAL or name.startswith(_PREFIXES):
        return "It is internal to the engine."
    return None


@cache
def functions() -> Functions:
    """The functions of this engine that may be called. Asked once per process."""
    connection = duckdb.connect(":memory:", config={"threads": "1", "enable_external_access": "false"})
    try:
        rows = connection.execute(
            "SELECT lower(function_name), function_type, bool_or(coalesce(stability = 'VOLATILE', false))"
            " FROM duckdb_functions() GROUP BY ALL"
        ).fetchall()
        returned = connection.execute(
            "SELECT lower(function_name), list(DISTINCT return_type) FROM duckdb_functions()"
            " WHERE function_type <> 'macro' GROUP BY ALL"
        ).fetchall()
    finally:
        connection.close()
    volatile = {name for name, _, is_volatile in rows if is_volatile}
    kinds: dict[str, set[str]] = {"scalar": set(), "aggregate": set(), "window": set()}
    for name, kind, _ in rows:
        if name.isidentifier() and name not in volatile and denial(name) is None:
            if kind == "macro":
                kind = "aggregate" if name in AGGREGATE_MACROS else "scalar"
            if kind in kinds:
                kinds[kind].add(name)
    kinds["scalar"] |= _OWN_SYNTAX | CLOCK_FUNCTIONS
    return Functions(
        scalar=frozenset(kinds["scalar"]),
        aggregate=frozenset(kinds["aggregate"] | {"percentile_cont", "percentile_disc"}),
        window=frozenset(kinds["window"]),
        known=frozenset(name for name, _, _ in rows),
        small=frozenset(name for name, types in returned if all(_has_fixed_size(t) for t in types)),
    )
