"""Public op traces of pipeline-parallel jobs (ByteDance-Seed/StragglerAnalysis) as Muster's tables.

A trace has one row for each operation of a rank: `optype`, `step`, `start_ts` and `duration` in seconds since the step
began, place (`rank`, `dp_rank`, `stage`). A file beside it (YAML) says how large the job was. One tensor-parallel rank of
each group was traced; the others are in the roster as `missing`.

What the trace does not say stays NULL. Three things are made of it:

- Times since the epoch: the trace has times within a step only, and not every step. Steps are laid end to end from 0.
- `comm_blocked_ms` of a step: the step less its compute (forward, backward, optimizer). That includes waits for which the
  trace has no row (on last stages, the activations of the stage before) and the reduction inside
  `optimizer-clip-main-grad`, which is no row of its own here because the trace does not part it from its compute.
- Members of groups, from what ends together in the trace: data parallel by stage; the embedding's by first and last stage
  of one data-parallel rank; layer norm's by the tensor-parallel ranks, of which one is traced; sends and receives by pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from muster.engine import arrow_of, arrow_type, open_engine
from muster.errors import BadRequest, TooLarge
from muster.tables import COMM_COLLECTIVE, NODES, STEP_TIMING, Table
from muster.wording import first_line

MAX_ROWS = 20_000_000
MAX_META_BYTES = 64 << 10
MAX_WORLD = 65_536
_TYPES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("rank", "dp_rank", "stage", "step", "seq_id"), pa.int64()),
    "optype": pa.string(),
    **dict.fromkeys(("start_ts", "duration"), pa.float64()),
}
_SIZES = ("dp_size", "pp_size", "tp_size", "world_size")


def load(parquet: Path, meta: Path) -> dict[str, pa.Table]:
    """`python.comm_collective`, `python.torch_step_timing` (without tags, with a column `rank`) and `cluster.nodes` of a
    trace. Raises BadRequest for files that are not such a trace, TooLarge beyond 20 million rows or 65,536 ranks."""
    sizes = _sizes(meta)
    ops = _ops(parquet)
    database = open_engine(memory_limit="2GB", threads=1)
    engine = database.cursor()
    try:
        engine.register("incoming", ops)
        engine.execute(f"CREATE TABLE op AS {_OPS}")
        engine.unregister("incoming")
        highest = sizes["world_size"] - 1
        if engine.execute("SELECT count(*) FROM op WHERE rank NOT BETWEEN 0 AND ?", [highest]).fetchall() != [(0,)]:
            raise BadRequest(f"{parquet} has ranks that are not 0 to {highest}.", hint="Give the YAML file of this trace.")
        names = ", ".join(f"? AS {n}" for n in _SIZES)
        engine.execute(f"CREATE TABLE size AS SELECT {names}", [sizes[n] for n in _SIZES])
        engine.execute(f"CREATE TABLE timing AS {_TIMING}")
        return {
            COMM_COLLECTIVE.full_name: _typed(arrow_of(engine, _COLLECTIVES), COMM_COLLECTIVE),
            STEP_TIMING.full_name: _typed(arrow_of(engine, "SELECT * FROM timing ORDER BY rank, global_step"), STEP_TIMING),
            NODES.full_name: _typed(arrow_of(engine, _NODES), NODES),
        }
    finally:
        engine.close()
        database.close()


def _sizes(meta: Path) -> dict[str, int]:
    try:
        if meta.stat().st_size > MAX_META_BYTES:
            raise TooLarge(f"{meta} is larger than {MAX_META_BYTES:,} bytes.", hint="Give the meta file of the trace.")
        found: Any = yaml.safe_load(meta.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadRequest(
            f"{meta} cannot be read: {first_line(error)}", hint="Give the YAML file beside the trace."
        ) from None
    sizes: dict[str, int] = {}
    for name in _SIZES:
        value = found.get(name) if isinstance(found, dict) else None
        if type(value) is not int or value <= 0:
            raise BadRequest(f"{meta} does not give {name} as a whole number.", hint="Give the YAML file beside the trace.")
        sizes[name] = value
    if sizes["world_size"] > MAX_WORLD:
        raise TooLarge(f"{meta} names {sizes['world_size']:,} ranks, at most {MAX_WORLD:,}.", hint="Cut the trace by rank.")
    return sizes


def _ops(parquet: Path) -> pa.Table:
    try:
        file = pq.ParquetFile(parquet)
        if file.metadata.num_rows > MAX_ROWS:
            raise TooLarge(f"{parquet} has {file.metadata.num_rows:,} rows, at most {MAX_ROWS:,}.", hint="Cut it by step.")
        absent = sorted(_TYPES.keys() - set(file.schema_arrow.names))
        if absent:
            raise BadRequest(
                f"{parquet} has no column {', '.join(absent)}.", hint="Give an op trace, one row an operation."
            )
        return file.read(columns=list(_TYPES)).select(list(_TYPES)).cast(pa.schema(_TYPES))
    except (OSError, pa.ArrowException) as error:
        raise BadRequest(f"{parquet} cannot be read: {first_line(error)}", hint="Give a parquet file.") from None


def _typed(rows: pa.Table, table: Table) -> pa.Table:
    """In the columns of the table; what the rows do not have is NULL."""
    schema = pa.schema([(c.name, arrow_type(c.type) or pa.null()) for c in table.columns])
    arrays = [rows.column(f.name) if f.name in rows.column_names else pa.nulls(rows.num_rows) for f in schema]
    return pa.table(arrays, names=schema.names).cast(schema)


_OPS = """
SELECT rank, dp_rank AS dp, stage AS pp, step, optype, start_ts AS start_s, duration AS s, seq_id AS n
FROM incoming WHERE duration IS NOT NULL AND start_ts IS NOT NULL"""

_TIMING = """
WITH lengths AS (SELECT step, max(start_s + s) AS whole_s FROM op GROUP BY step),
     laid AS (
       SELECT step, row_number() OVER (ORDER BY step) AS i,
              coalesce(sum(whole_s) OVER (ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS from_s
       FROM lengths),
     own AS (
       SELECT rank, dp, pp, step, max(start_s + s) AS step_s,
              coalesce(sum(s) FILTER (WHERE optype = 'forward-compute'), 0) AS forward_s,
              coalesce(sum(s) FILTER (WHERE optype = 'backward-compute'), 0) AS backward_s,
              coalesce(sum(s) FILTER (WHERE optype = 'optimizer'), 0) AS optimizer_s
       FROM op GROUP BY rank, dp, pp, step)
SELECT l.i AS local_step, o.step AS global_step, o.rank, z.world_size,
       'dp=' || o.dp || ',pp=' || o.pp || ',tp=0' AS role, o.step_s AS step_duration_sec,
       o.forward_s * 1000 AS forward_ms, o.backward_s * 1000 AS backward_ms, o.optimizer_s * 1000 AS optimizer_ms,
       greatest(0, o.step_s - o.forward_s - o.backward_s - o.optimizer_s) * 1000 AS comm_blocked_ms,
       'other' AS step_source, 0 AS is_shadow, 'trace' AS comm_source,
       CAST(round((l.from_s + o.step_s) * 1e9) AS BIGINT) AS end_ns, l.from_s
FROM own AS o JOIN laid AS l ON l.step = o.step CROSS JOIN size AS z"""

_COLLECTIVES = """
WITH place AS (SELECT DISTINCT rank, dp, pp FROM op),
     named AS (
       SELECT rank, dp, pp, step, start_s, s, n, right(optype, 4) AS way,
              CASE WHEN optype LIKE '%-send' OR optype LIKE '%-recv' THEN 'pipeline'
                   WHEN optype LIKE 'embedding-%' THEN 'embedding'
                   WHEN optype LIKE 'layernorm-%' THEN 'tensor' ELSE 'data' END AS pg,
              CASE WHEN optype LIKE '%-all-reduce' THEN 'all_reduce'
                   WHEN optype LIKE '%-reduce-scatter' THEN 'reduce_scatter'
                   WHEN optype LIKE '%-all-gather' THEN 'all_gather' END AS op,
              CASE WHEN optype IN ('forward-send', 'backward-recv') THEN pp + 1
                   WHEN optype IN ('forward-recv', 'backward-send') THEN pp - 1 END AS beside
       FROM op WHERE regexp_matches(optype, '-(send|recv|all-reduce|reduce-scatter|all-gather)$')),
     calls AS (
       -- a send and a receive that begin and end together are one batch
       SELECT n.rank, n.dp, n.pp, n.step, n.start_s, n.s, n.pg, p.rank AS peer, min(n.n) AS n,
              CASE WHEN n.pg <> 'pipeline' THEN n.op WHEN count(*) > 1 THEN 'batch_isend_irecv' ELSE min(n.way) END AS op
       FROM named AS n LEFT JOIN place AS p ON p.dp = n.dp AND p.pp = n.beside
       GROUP BY n.rank, n.dp, n.pp, n.step, n.start_s, n.s, n.pg, n.op, p.rank),
     stages AS (SELECT pp, list(rank ORDER BY rank) AS ranks FROM place GROUP BY pp),
     ends AS (
       SELECT dp, list(rank ORDER BY rank) AS ranks FROM place CROSS JOIN size WHERE pp IN (0, pp_size - 1) GROUP BY dp),
     grouped AS (
       SELECT c.*, CASE c.pg WHEN 'pipeline' THEN list_sort([c.rank, c.peer]) WHEN 'embedding' THEN e.ranks
                             WHEN 'tensor' THEN range(c.rank, c.rank + z.tp_size) ELSE s.ranks END AS ranks
       FROM calls AS c LEFT JOIN stages AS s ON s.pp = c.pp LEFT JOIN ends AS e ON e.dp = c.dp CROSS JOIN size AS z)
SELECT t.local_step, g.step AS global_step, g.rank, t.world_size, t.role, g.op,
       list_position(g.ranks, g.rank) - 1 AS group_rank, len(g.ranks) AS group_size,
       '[' || array_to_string(g.ranks, ', ') || ']' AS participate_ranks, g.s * 1000 AS duration_ms,
       0 AS async_op, g.pg AS pg_name,
       g.n AS occurrence, CAST(round((t.from_s + g.start_s) * 1e9) AS BIGINT) AS start_ns,
       CAST(round((t.from_s + g.start_s + g.s) * 1e9) AS BIGINT) AS end_ns, g.s * 1000 AS blocked_ms,
       'device' AS timing_source, g.peer
FROM grouped AS g JOIN timing AS t ON t.rank = g.rank AND t.global_step = g.step
ORDER BY g.rank, start_ns"""

_NODES = """
WITH place AS (SELECT DISTINCT rank, dp, pp FROM op)
SELECT r.rank, z.world_size, 'dp=' || p.dp || ',pp=' || p.pp || ',tp=0' AS role,
       CASE WHEN p.rank IS NULL THEN 'missing' ELSE 'running' END AS status
FROM size AS z, unnest(range(z.world_size)) AS r(rank) LEFT JOIN place AS p ON p.rank = r.rank ORDER BY r.rank"""
