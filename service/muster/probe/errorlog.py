"""Errors of the recorder: counted by place, with the last message of each, where the agent can read them."""

from __future__ import annotations

from threading import RLock
from time import time_ns
from typing import Protocol

from muster.probe.layout import Field

NAME = "errors"
SLOTS = 64
FIELDS = (
    Field("place", "VARCHAR", "inline", 64),
    Field("count", "BIGINT", "i64"),
    Field("last", "VARCHAR", "inline", 200),
    Field("last_ns", "BIGINT", "i64"),
)
_REST = "other"


class _Slots(Protocol):
    def put(self, row: tuple[object, ...]) -> int | None: ...
    def replace(self, slot: int, row: tuple[object, ...]) -> None: ...


class ErrorLog:
    """Counts; never raises. Works before there is a file, then with one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._slots: dict[str, int | None] = {}
        self._file: _Slots | None = None
        self._lock = RLock()

    def attach(self, file: _Slots) -> None:
        """Write to this file from now on, and what was counted before."""
        with self._lock:
            self._file = file
            for place in self._counts:
                self._slots[place] = file.put((place, self._counts[place], None, time_ns()))

    def count(self, where: str, error: BaseException | str) -> None:
        """Count one error at a place. Beyond 64 places they are counted together."""
        try:
            with self._lock:
                if where not in self._counts and len(self._counts) >= SLOTS - 1:
                    where = _REST
                self._counts[where] = self._counts.get(where, 0) + 1
                if self._file is None:
                    return
                message = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
                row = (where, self._counts[where], message, time_ns())
                slot = self._slots.get(where)
                if slot is None:
                    self._slots[where] = self._file.put(row)
                else:
                    self._file.replace(slot, row)
        except Exception:
            self._counts[_REST] = self._counts.get(_REST, 0) + 1

    def counts(self) -> dict[str, int]:
        """Errors so far, by place."""
        return dict(self._counts)
