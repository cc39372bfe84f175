"""Public op traces as tables: what the trace says is there, what it does not say is NULL, other files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from diagnosis.collectives import TRACES, needs_traces
from muster.bundle.traces import load
from muster.engine import arrow_type
from muster.errors import BadRequest, MusterError, TooLarge
from muster.tables import REGISTRY

META = {"dp_size": 2, "pp_size": 2, "tp_size": 2, "world_size": 8}


def op(rank: int, optype: str, start: float, duration: float, step: int = 7, n: int = 0) -> dict[str, Any]:
    return {
        "rank": rank, "dp_rank": rank % 4 // 2, "stage": rank // 4, "step": step, "optype": optype, "start_ts": start,
        "duration": duration, "seq_id": n,
    }  # fmt: skip


def write(folder: Path, ops: list[dict[str, Any]], meta: object = META) -> tuple[Path, Path]:
    pq.write_table(pa.Table.from_pylist(ops), folder / "t.parquet")
    (folder / "m.yaml").write_text(yaml.safe_dump(meta))
    return folder / "t.parquet", folder / "m.yaml"


OPS = [
    op(0, "params-all-gather", 0.0, 0.1),
    op(0, "forward-compute", 0.1, 0.4),
    op(0, "forward-send", 0.5, 0.2),
    op(0, "backward-recv", 0.5, 0.2),  # the same moment: one batch
    op(0, "backward-compute", 0.7, 0.2),
    op(0, "backward-recv", 0.9, 0.05, n=1),
    op(0, "embedding-grads-all-reduce", 0.95, 0.03),
    op(0, "layernorm-grads-all-reduce", 0.98, 0.01),
    op(0, "optimizer", 1.0, 0.25),
    op(2, "forward-compute", 0.1, 0.2),
    op(4, "forward-compute", 0.1, 0.2),
    op(6, "forward-compute", 0.1, 2.0, step=5),
]


def test_each_operation_has_its_group(tmp_path: Path) -> None:
    rows = load(*write(tmp_path, OPS))["python.comm_collective"].to_pylist()
    assert [(r["op"], r["pg_name"], r["participate_ranks"], r["group_rank"], r["peer"]) for r in rows] == [
        ("all_gather", "data", "[0, 2]", 0, None),
        ("batch_isend_irecv", "pipeline", "[0, 4]", 0, 4),
        ("recv", "pipeline", "[0, 4]", 0, 4),
        ("all_reduce", "embedding", "[0, 4]", 0, None),
        ("all_reduce", "tensor", "[0, 1]", 0, None),
    ]
    assert [round(r["blocked_ms"]) for r in rows] == [100, 200, 50, 30, 10]
    assert {(r["rank"], r["role"], r["bytes"], r["seq"]) for r in rows} == {(0, "dp=0,pp=0,tp=0", None, None)}


def test_a_step_less_its_compute_is_time_blocked(tmp_path: Path) -> None:
    rows = load(*write(tmp_path, OPS))["python.torch_step_timing"].to_pylist()
    first = next(r for r in rows if r["rank"] == 0)
    assert first["step_duration_sec"] == pytest.approx(1.25)
    assert (first["forward_ms"], first["backward_ms"], first["optimizer_ms"]) == pytest.approx((400, 200, 250))
    assert first["comm_blocked_ms"] == pytest.approx(400)
    assert (first["phase"], first["tokens"], first["data_ms"], first["comm_source"]) == (None, None, None, "trace")


def test_steps_lie_end_to_end(tmp_path: Path) -> None:
    rows = load(*write(tmp_path, OPS))["python.torch_step_timing"].to_pylist()
    ends = {(r["global_step"], r["rank"]): r["end_ns"] for r in rows}
    assert ends[5, 6] == 2_100_000_000
    assert ends[7, 0] == 3_350_000_000
    assert {r["global_step"]: r["local_step"] for r in rows} == {5: 1, 7: 2}


def test_ranks_that_were_not_traced_are_missing(tmp_path: Path) -> None:
    nodes = load(*write(tmp_path, OPS))["cluster.nodes"].to_pylist()
    assert [n["status"] for n in nodes] == ["running", "missing"] * 4
    assert [n["role"] for n in nodes][:3] == ["dp=0,pp=0,tp=0", None, "dp=1,pp=0,tp=0"]
    assert {n["world_size"] for n in nodes} == {8}


def test_tables_have_the_columns_and_types_of_the_registry(tmp_path: Path) -> None:
    for name, rows in load(*write(tmp_path, OPS)).items():
        assert [(f.name, f.type) for f in rows.schema] == [(c.name, arrow_type(c.type)) for c in REGISTRY[name].columns]


@pytest.mark.parametrize(
    ("ops", "meta", "says"),
    [
        ([{"rank": 0}], META, "no column dp_rank, duration"),
        (OPS, {"dp_size": 2}, "does not give pp_size"),
        (OPS, ["x"], "does not give"),
        (OPS, {**META, "tp_size": True}, "does not give"),
        (OPS, {**META, "world_size": 4}, "ranks that are not 0 to 3"),
        ([op(-1, "optimizer", 0, 1)], META, "ranks that are not"),
        ([{**OPS[0], "rank": "x"}], META, "cannot be read"),
    ],
)
def test_other_files_are_refused_and_say_why(tmp_path: Path, ops: list[dict[str, Any]], meta: object, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        load(*write(tmp_path, ops, meta))
    assert says in caught.value.detail
    assert caught.value.hint


def test_what_is_no_file_of_the_kind_is_a_clear_error(tmp_path: Path) -> None:
    parquet, meta = write(tmp_path, OPS)
    for a, b in ((meta, meta), (parquet, tmp_path / "none.yaml"), (tmp_path / "none", meta), (parquet, parquet)):
        with pytest.raises(MusterError) as caught:
            load(a, b)
        assert "cannot be read" in caught.value.detail


def test_sizes_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(TooLarge):
        load(*write(tmp_path, OPS, {**META, "world_size": 1 << 20}))
    parquet, meta = write(tmp_path, OPS)
    meta.write_text("x: " + "y" * 70_000)
    with pytest.raises(TooLarge):
        load(parquet, meta)


@needs_traces
@pytest.mark.parametrize(("name", "world", "traced", "steps"), [("AR", 64, 16, 44), ("ST", 8, 8, 32)])
def test_the_public_traces_load_whole(name: str, world: int, traced: int, steps: int) -> None:
    tables = load(TRACES / f"trace-{name}.parquet", TRACES / f"meta-{name}.yaml")
    assert tables["cluster.nodes"].num_rows == world
    assert tables["python.torch_step_timing"].num_rows == traced * steps
    timing = tables["python.torch_step_timing"].to_pylist()
    assert all(0 <= r["comm_blocked_ms"] < r["step_duration_sec"] * 1000 for r in timing)
