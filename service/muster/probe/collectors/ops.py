"""What torch's collective functions are called with: which argument is the tensor, the group, the peer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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


Argument = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
Reader = Callable[[tuple[Any, ...], Mapping[str, Any]], Call]


def argument(signature: inspect.Signature, name: str) -> Argument:
    """A function that finds an argument in a call, whether given by place or by name; its default, else None, if not given
    or not known to this version of torch."""
    names = list(signature.parameters)
    if name not in names:
        return lambda args, kwargs: kwargs.get(name)
    place, default = names.index(name), signature.parameters[name].default
    if default is inspect.Parameter.empty:
        default = None
    return lambda args, kwargs: args[place] if len(args) > place else kwargs.get(name, default)


def reader(function: Callable[..., Any], spec: Spec, dtype_names: Callable[[Any], str]) -> Reader:
    """A function that reads the arguments of a call to `function`."""
    find = partial(argument, inspect.signature(function))
    group_of, async_of = find("group"), find("async_op")
    tensor_of, whole_of = find(spec.one or ""), [find(name) for name in spec.full]
    peer_of, group_peer_of = find(spec.peer or ""), find(f"group_{spec.peer}")
    splits_of = [find(name) for name in spec.splits or ()]
    has_tensor, has_peer, is_async = bool(spec.one), bool(spec.peer), spec.is_async

    def describe(call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        tensor = tensor_of(args, kwargs)
        whole: Any = None
        for of in whole_of:
            whole = of(args, kwargs)
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
        call.group = group_of(args, kwargs)
        call.async_op = bool(async_of(args, kwargs)) if is_async is None else is_async
        call.nbytes = call.shape = call.dtype = call.peer = call.in_splits = call.out_splits = None
        call.on_cpu = True
        call.peer_in_group = False
        if has_tensor:
            try:
                describe(call, args, kwargs)
            except (AttributeError, TypeError):  # no tensor: torch will say so
                call.nbytes = None
        if splits_of:
            call.in_splits, call.out_splits = (_splits(of(args, kwargs)) for of in splits_of)
        if has_peer:
            call.peer = peer_of(args, kwargs)
            if call.peer is None:
                call.peer = group_peer_of(args, kwargs)
                call.peer_in_group = True
        return call

    return read


def _splits(value: Any) -> list[int] | None:
    """Split sizes as they are, or the number of elements of each tensor of a list."""
    if not value:
        return None
    return [v if isinstance(v, int) else int(v.numel()) for v in value]
