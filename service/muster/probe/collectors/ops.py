"""What torch's collective functions are called with: which argument is the tensor, the group, the peer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Spec:
    """How to read the arguments of one function, by the names of its parameters.

    `full`: tensors (or list) whose bytes count: the whole buffer that the operation fills or sends on this rank; the first
    that is given. `one`: tensor whose shape and type are kept. `peer`, `group_peer`: the other side, as global rank and as
    rank in the group. `splits`: input and output splits. `blocks`: the call waits also on a device (barrier, objects).
    `is_async`: None where a parameter `async_op` says so. `numbered`: False for what not every member of the group takes
    part in equally (sends, receives, what is made of them): it moves the group's sequence number on some ranks only.
    """

    full: tuple[str, ...] = ()
    one: str | None = None
    peer: str | None = None
    splits: tuple[str, str] | None = None
    lists: bool = False
    blocks: bool = False
    is_async: bool | None = None
    numbered: bool = True


_TENSOR = Spec(full=("tensor",), one="tensor")
_SINGLE_GATHER = Spec(full=("output_tensor",), one="input_tensor")
_SINGLE_SCATTER = Spec(full=("input",), one="input")
_OBJECTS = Spec(blocks=True, is_async=False)

SPECS: Mapping[str, Spec] = {
    "all_reduce": _TENSOR,
    "all_reduce_coalesced": Spec(full=("tensors",), one="tensors"),
    "broadcast": _TENSOR,
    "reduce": _TENSOR,
    "all_gather": Spec(full=("tensor_list",), one="tensor"),
    "all_gather_single": _SINGLE_GATHER,
    "all_gather_into_tensor": _SINGLE_GATHER,
    "_all_gather_base": _SINGLE_GATHER,
    "all_gather_coalesced": Spec(full=("input_tensor_list",), one="input_tensor_list"),
    "gather": Spec(full=("gather_list", "tensor"), one="tensor"),
    "scatter": Spec(full=("scatter_list", "tensor"), one="tensor"),
    "reduce_scatter": Spec(full=("input_list",), one="output"),
    "reduce_scatter_single": _SINGLE_SCATTER,
    "reduce_scatter_tensor": _SINGLE_SCATTER,
    "_reduce_scatter_base": _SINGLE_SCATTER,
    "all_to_all": Spec(full=("input_tensor_list",), one="input_tensor_list", lists=True,
                       splits=("input_tensor_list", "output_tensor_list")),
    "all_to_all_single": Spec(full=("input",), one="input", splits=("input_split_sizes", "output_split_sizes")),
    "barrier": Spec(blocks=True),
    "monitored_barrier": Spec(blocks=True, is_async=False, numbered=False),
    "send": Spec(full=("tensor",), one="tensor", peer="dst", is_async=False, numbered=False),
    "recv": Spec(full=("tensor",), one="tensor", peer="src", is_async=False, numbered=False),
    "isend": Spec(full=("tensor",), one="tensor", peer="dst", is_async=True, numbered=False),
    "irecv": Spec(full=("tensor",), one="tensor", peer="src", is_async=True, numbered=False),
    "all_gather_object": _OBJECTS,
    "gather_object": _OBJECTS,
    "broadcast_object_list": _OBJECTS,
    "scatter_object_list": _OBJECTS,
    "send_object_list": Spec(blocks=True, is_async=False, peer="dst", numbered=False),
    "recv_object_list": Spec(blocks=True, is_async=False, peer="src", numbered=False),
}  # fmt: skip
"""Functions of torch.distributed; those that a version of torch does not have are left out."""


class Call:
    """What one call is about. `nbytes`, `shape`, `dtype` are None where there is no tensor; `peer` is a global rank where
    `peer_in_group` is False."""

    __slots__ = (
        "async_op", "dtype", "group", "in_splits", "nbytes", "on_cpu", "out_splits", "peer", "peer_in_group", "shape",
    )  # fmt: skip

    group: Any
    nbytes: int | None
    shape: Any
    dtype: str | None
    on_cpu: bool
    async_op: bool
    peer: int | None
    peer_in_group: bool
    in_splits: list[int] | None
    out_splits: list[int] | None


Reader = Callable[[tuple[Any, ...], Mapping[str, Any]], Call]


class _Arguments:
    """Finds arguments by name, whether given by place or by name."""

    __slots__ = ("_defaults", "_places")

    def __init__(self, signature: inspect.Signature) -> None:
        self._places = {name: place for place, name in enumerate(signature.parameters)}
        empty = inspect.Parameter.empty
        self._defaults = {n: p.default for n, p in signature.parameters.items() if p.default is not empty}

    def has(self, name: str) -> bool:
        return name in self._places

    def get(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        place = self._places.get(name)
        if place is not None and place < len(args):
            return args[place]
        if name in kwargs:
            return kwargs[name]
        return self._defaults.get(name)


def reader(function: Callable[..., Any], spec: Spec, dtype_names: Callable[[Any], str]) -> Reader:
    """A function that reads the arguments of a call to `function`."""
    arguments = _Arguments(inspect.signature(function))
    get = arguments.get
    group_peer = None if spec.peer is None else f"group_{spec.peer}"
    full, one, splits, is_async = spec.full, spec.one or "", spec.splits, spec.is_async

    def describe(call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        tensor = get(one, args, kwargs)
        whole: Any = None
        for name in full:
            whole = get(name, args, kwargs)
            if whole is not None:
                break
        if isinstance(tensor, list | tuple):
            tensor = tensor[0] if tensor else None
        if isinstance(whole, list | tuple):
            call.nbytes = sum([t.nbytes for t in whole])
        elif whole is not None:
            call.nbytes = whole.nbytes
        if tensor is not None:
            call.shape = tuple(tensor.shape)
            call.dtype = dtype_names(tensor.dtype)
            call.on_cpu = tensor.is_cpu

    def read(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        call = Call()
        call.group = get("group", args, kwargs)
        call.async_op = bool(get("async_op", args, kwargs)) if is_async is None else is_async
        call.nbytes = call.shape = call.dtype = call.peer = call.in_splits = call.out_splits = None
        call.on_cpu = True
        call.peer_in_group = False
        if one:
            try:
                describe(call, args, kwargs)
            except (AttributeError, TypeError):  # no tensor: torch will say so
                call.nbytes = None
        if splits is not None:
            call.in_splits, call.out_splits = (_splits(get(name, args, kwargs)) for name in splits)
        if spec.peer is not None and group_peer is not None:
            call.peer = get(spec.peer, args, kwargs)
            if call.peer is None:
                call.peer = get(group_peer, args, kwargs)
                call.peer_in_group = True
        return call

    return read


def _splits(value: Any) -> list[int] | None:
    """Split sizes as they are, or the number of elements of each tensor of a list."""
    if not value:
        return None
    return [v if isinstance(v, int) else int(v.numel()) for v in value]
