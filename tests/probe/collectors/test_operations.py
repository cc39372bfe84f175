"""Every operation of torch.distributed is one row, with what it was called with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probe.collectors.ranks import Rank, run

pytestmark = pytest.mark.torch
SIZE = 3


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    return run(tmp_path_factory.mktemp("operations"), "operations.py", ranks=SIZE)


def test_each_call_is_recorded_once_and_what_it_calls_is_not(ranks: list[Rank]) -> None:
    common = {
        "broadcast": 1, "reduce": 1, "all_gather": 1, "all_gather_into_tensor": 1, "reduce_scatter": 1,
        "reduce_scatter_tensor": 1, "gather": 1, "scatter": 1, "all_to_all_single": 1, "barrier": 2,
        "monitored_barrier": 1, "all_gather_object": 1, "broadcast_object_list": 1, "isend": 2, "irecv": 2,
        "all_reduce_coalesced": 2,
    }  # fmt: skip
    for rank in ranks:
        r = rank.life.rank
        own = {"all_reduce": 7 + (r < 2)} | ({"send": 1} if r == 0 else {"recv": 1} if r == 1 else {})
        assert rank.ops == common | own


@pytest.mark.parametrize(
    ("op", "nbytes", "shape"),
    [
        ("broadcast", 20, [5]),
        ("reduce", 20, [5]),
        ("all_gather", 8 * SIZE, [2]),
        ("all_gather_into_tensor", 8 * SIZE, [2]),
        ("reduce_scatter", 8 * SIZE, [2]),
        ("reduce_scatter_tensor", 8 * SIZE, [2 * SIZE]),
        ("all_to_all_single", 8 * SIZE, [2 * SIZE]),
    ],
)
def test_bytes_are_the_whole_buffer_and_shape_is_the_tensor_of_this_rank(
    ranks: list[Rank], op: str, nbytes: int, shape: list[int]
) -> None:
    for rank in ranks:
        row = rank.only(op)
        assert (row["bytes"], json.loads(row["tensor_shape"]), row["tensor_dtype"]) == (nbytes, shape, "float32")


def test_root_of_a_gather_counts_the_whole_and_the_others_their_part(ranks: list[Rank]) -> None:
    assert [r.only("gather")["bytes"] for r in ranks] == [12 * SIZE, 12, 12]
    assert [r.only("scatter")["bytes"] for r in ranks] == [12 * SIZE, 12, 12]


def test_barriers_and_objects_have_no_tensor(ranks: list[Rank]) -> None:
    for op in ("monitored_barrier", "all_gather_object", "broadcast_object_list"):
        row = ranks[1].only(op)
        assert row["bytes"] is None
        assert row["tensor_shape"] is None
        assert row["timing_source"] == "sync"


def test_group_has_name_members_own_rank_and_size(ranks: list[Rank]) -> None:
    whole = ranks[1].only("broadcast")
    assert (json.loads(whole["participate_ranks"]), whole["group_rank"], whole["group_size"]) == ([0, 1, 2], 1, 3)
    pair = ranks[1].only("all_reduce", bytes=16)
    assert (json.loads(pair["participate_ranks"]), pair["group_rank"], pair["group_size"]) == ([0, 1], 1, 2)
    assert pair["pg_name"] != whole["pg_name"]


def test_send_and_receive_name_the_other_side_by_its_global_rank(ranks: list[Rank]) -> None:
    assert ranks[0].only("send")["peer"] == 1
    assert ranks[1].only("recv")["peer"] == 0
    for rank in ranks:
        r = rank.life.rank
        assert {x["peer"] for x in rank.collectives if x["op"] == "isend"} == {(r + 1) % SIZE}
        assert {x["peer"] for x in rank.collectives if x["op"] == "irecv"} == {(r - 1) % SIZE}


def test_sequence_numbers_agree_between_ranks_also_after_sends_of_some_of_them(ranks: list[Rank]) -> None:
    def numbers(rank: Rank) -> list[tuple[str, int, int]]:
        whole = [x for x in rank.collectives if x["group_size"] == SIZE and x["seq"] and not x["error"]]
        return sorted((x["op"], x["bytes"] or 0, x["seq"]) for x in whole if x["op"] not in ("gather", "scatter"))

    first = numbers(ranks[0])
    assert len(first) > 15
    assert len({seq for _, _, seq in first}) == len(first)
    assert numbers(ranks[1]) == first
    assert numbers(ranks[2]) == first


def test_splits_of_an_all_to_all_are_kept(ranks: list[Rank]) -> None:
    row = ranks[0].only("all_to_all_single")
    assert json.loads(row["in_splits"]) == json.loads(row["out_splits"]) == [2] * SIZE


def test_synchronous_calls_are_blocked_for_their_whole_time(ranks: list[Rank]) -> None:
    row = ranks[0].only("broadcast")
    assert row["timing_source"] == "sync"
    assert row["async_op"] == 0
    assert row["blocked_ms"] == row["duration_ms"] > 0


@pytest.mark.parametrize("elements", [8, 9], ids=["wait", "future"])
def test_asynchronous_calls_end_when_they_are_waited_for(ranks: list[Rank], elements: int) -> None:
    row = ranks[0].only("all_reduce", bytes=4 * elements)
    assert (row["async_op"], row["timing_source"]) == (1, "wait")
    assert row["start_ns"] < row["wait_start_ns"] < row["end_ns"]
    assert 0 < row["blocked_ms"] <= row["duration_ms"]


@pytest.mark.parametrize("elements", [10, 11], ids=["chained future", "given up"])
def test_asynchronous_calls_that_nobody_waits_for_end_and_count_their_launch_only(ranks: list[Rank], elements: int) -> None:
    row = ranks[0].only("all_reduce", bytes=4 * elements)
    assert row["wait_start_ns"] is None
    assert row["blocked_ms"] < row["duration_ms"]


def test_coalesced_operations_are_one_with_the_bytes_of_all(ranks: list[Rank]) -> None:
    found = [r for r in ranks[0].collectives if r["op"] == "all_reduce_coalesced"]
    assert [(r["bytes"], r["async_op"], r["timing_source"]) for r in found] == [
        (4 * 29, 0, "sync"), (4 * 33, 1, "wait"),
    ]  # fmt: skip


def test_an_error_reaches_the_caller_and_the_row(ranks: list[Rank]) -> None:
    said = json.loads(ranks[0].output.strip().splitlines()[-1])["error"]
    failed = [r for r in ranks[0].collectives if r["error"]]
    assert len(failed) == 1
    assert failed[0]["error"].startswith("TypeError")
    assert said[:20] in failed[0]["error"]


def test_all_ranks_have_the_generation_of_rank_0(ranks: list[Rank], tmp_path: Path) -> None:
    assert {r.meta.generation for r in ranks} == {ranks[0].meta.generation}
    assert ranks[0].meta.generation_final
