"""Which functions of torch.distributed are recorded, and where their arguments are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Place = tuple[int, str]  # position and keyword


@dataclass(frozen=True, slots=True)
class Operation:
    """A function: `tensors` are those whose bytes this rank puts in (or gets, for a receive). `has_seq`: it counts in the
    group's sequence; point-to-point operations and those made of several do not."""

    name: str
    group: Place
    tensors: Place | None = None
    async_op: Place | None = None
    peer: Place | None = None
    group_peer: str | None = None
    in_splits: Place | None = None
    out_splits: Place | None = None
    returns_work: bool = False
    has_seq: bool = True


def _plain(name: str, tensors: Place, group: int, async_op: int) -> Operation:
    return Operation(name, (group, "group"), tensors, (async_op, "async_op"))


def _object(name: str, group: int) -> Operation:
    return Operation(name, (group, "group"), has_seq=False)


OPERATIONS: Mapping[str, Operation] = {
    o.name: o
    for o in (
        _plain("all_reduce", (0, "tensor"), 2, 3),
        _plain("all_reduce_coalesced", (0, "tensors"), 2, 3),
        _plain("broadcast", (0, "tensor"), 2, 3),
        _plain("reduce", (0, "tensor"), 3, 4),
        _plain("all_gather", (1, "tensor"), 2, 3),
        _plain("all_gather_single", (1, "input_tensor"), 2, 3),
        _plain("all_gather_into_tensor", (1, "input_tensor"), 2, 3),
        _plain("_all_gather_base", (1, "input_tensor"), 2, 3),
        _plain("all_gather_coalesced", (1, "input_tensor_list"), 2, 3),
        _plain("gather", (0, "tensor"), 3, 4),
        _plain("scatter", (0, "tensor"), 3, 4),
        _plain("reduce_scatter", (1, "input_list"), 3, 4),
        _plain("reduce_scatter_single", (1, "input"), 3, 4),
        _plain("reduce_scatter_tensor", (1, "input"), 3, 4),
        _plain("_reduce_scatter_base", (1, "input"), 3, 4),
        _plain("all_to_all", (1, "input_tensor_list"), 2, 3),
        Operation(
            "all_to_all_single", (4, "group"), (1, "input"), (5, "async_op"),
            in_splits=(3, "input_split_sizes"), out_splits=(2, "output_split_sizes"),
        ),
        Operation("barrier", (0, "group"), async_op=(1, "async_op")),
        Operation("monitored_barrier", (0, "group"), has_seq=False),
        _object("all_gather_object", 2),
        _object("gather_object", 3),
        _object("broadcast_object_list", 2),
        _object("scatter_object_list", 3),
        Operation("send_object_list", (2, "group"), peer=(1, "dst"), group_peer="group_dst", has_seq=False),
        Operation("recv_object_list", (2, "group"), peer=(1, "src"), group_peer="group_src", has_seq=False),
        Operation("send", (2, "group"), (0, "tensor"), peer=(1, "dst"), group_peer="group_dst", has_seq=False),
        Operation("recv", (2, "group"), (0, "tensor"), peer=(1, "src"), group_peer="group_src", has_seq=False),
        Operation(
            "isend", (2, "group"), (0, "tensor"), peer=(1, "dst"), group_peer="group_dst", returns_work=True, has_seq=False
        ),
        Operation(
            "irecv", (2, "group"), (0, "tensor"), peer=(1, "src"), group_peer="group_src", returns_work=True, has_seq=False
        ),
    )
}  # fmt: skip


def argument(place: Place | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The argument at a place; None where it was not given."""
    if place is None:
        return None
    position, name = place
    return args[position] if position < len(args) else kwargs.get(name)


@dataclass(frozen=True, slots=True)
class Content:
    """What a call works on: bytes, shape and type of the first tensor, whether it lies on a device of its own."""

    nbytes: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    on_device: bool = False


NOTHING = Content()


def content(value: Any) -> Content:
    """Of a tensor, or of a list of tensors."""
    if value is None:
        return NOTHING
    if isinstance(value, list | tuple):
        if not value or not hasattr(value[0], "element_size"):
            return NOTHING
        first = value[0]
        nbytes = sum(t.numel() * t.element_size() for t in value)
    else:
        first = value
        if not hasattr(first, "element_size"):
            return NOTHING
        nbytes = first.numel() * first.element_size()
    return Content(nbytes, tuple(first.shape), _dtype(first.dtype), first.device.type != "cpu")


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
