"""Replace functions and methods so that all of it can be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patches:
    """What was replaced, in order. `undo` puts every original back, also into modules that took a replacement by
    `from … import name`."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any, Any]] = []
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> bool:
        """Put `make(original)` in place of the attribute. False if there is no such attribute."""
        original = getattr(owner, name, _ABSENT)
        if original is _ABSENT:
            return False
        own = vars(owner).get(name, _ABSENT)
        replacement = make(original)
        setattr(owner, name, replacement)
        self._done.append((owner, name, own, original, replacement))
        return True

    def replacement(self, original: Any) -> Any:
        """What stands in place of an original; None for nothing."""
        return next((new for _, _, _, old, new in self._done if old is original), None)

    def on_undo(self, action: Callable[[], None]) -> None:
        """Run this too when undoing, newest first and before attributes are put back."""
        self._undo.append(action)

    def spread(self) -> None:
        """Give the replacements to modules that took an original by name before it was replaced."""
        _swap({id(original): replacement for _, _, _, original, replacement in self._done})

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()
        taken = {id(replacement): original for _, _, _, original, replacement in self._done}
        while self._done:
            owner, name, own, _, replacement = self._done.pop()
            if vars(owner).get(name) is not replacement:
                continue  # somebody replaced it after us
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        _swap(taken)


def _swap(by_id: dict[int, Any]) -> None:
    """Exchange module attributes by the identity of their values."""
    for module in list(sys.modules.values()):
        names: dict[str, Any] = getattr(module, "__dict__", None) or {}
        for name, value in list(names.items()):
            if id(value) in by_id and callable(value):
                names[name] = by_id[id(value)]
