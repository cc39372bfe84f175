"""Pickles from elsewhere, as plain data: built-in containers, numbers, strings and bytes, and nothing that runs.

A pickle is a program. It is read twice: first instruction by instruction, where all that could name, call or build an
object is refused, and a memo larger than the file (the C unpickler reserves what a pickle asks for); then by an unpickler
that knows no name at all.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

from muster.errors import BadRequest
from muster.wording import first_line

_CONSTANTS = {
    "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG1", "FLOAT", "BINFLOAT", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_CONTAINERS = {
    "EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT",
    "SETITEM", "SETITEMS",
}  # fmt: skip
_MACHINE = {
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
}  # fmt: skip
_PLAIN = _CONSTANTS | _CONTAINERS | _MACHINE
_MEMO = frozenset({"BINPUT", "LONG_BINPUT"})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside itself")


def plain_data(content: bytes, what: str) -> Any:
    """What a pickle of plain data holds. `what` names it in errors. Raises BadRequest for all others."""
    try:
        end = 0
        for opcode, argument, at in pickletools.genops(content):
            if opcode.name not in _PLAIN:
                raise pickle.UnpicklingError(f"it has the instruction {opcode.name}, which plain data does not need")
            if opcode.name in _MEMO and isinstance(argument, int) and argument > len(content):
                raise pickle.UnpicklingError("its memo is larger than the file")
            end = at or 0
        if end + 1 != len(content):
            raise pickle.UnpicklingError("something stands behind its end")
        return _Unpickler(io.BytesIO(content)).load()
    except MemoryError:
        raise BadRequest(f"{what} cannot be held in memory.", hint=_HINT) from None
    except Exception as error:  # the unpickler raises whatever a broken pickle makes it meet
        raise BadRequest(f"{what} is no pickle of plain data: {first_line(error)}.", hint=_HINT) from None


_HINT = "Give the dump as torch wrote it. Without it, move it away: its rank then counts as one without a dump."
