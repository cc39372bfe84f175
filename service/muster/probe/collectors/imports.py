"""Run something right after a module has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from threading import RLock
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]
OnError = Callable[[str, BaseException | str], None]


class PostImport:
    """A finder that finds nothing of its own: it lets the other finders find, and runs actions after the module's code ran
    and before the import statement returns, so that `from module import name` already sees what an action put there.

    It stands in `sys.meta_path` only while modules are awaited. An action that raises is counted; the import goes on.
    """

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self._actions: dict[str, list[Action]] = {}
        self._lock = RLock()
        self._finding: set[str] = set()

    def when(self, name: str, action: Action) -> None:
        """Run `action(module)` once the module has been imported: now, if it has been already."""
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            self._run(name, module, (action,))
            return
        with self._lock:
            self._actions.setdefault(name, []).append(action)
            if self not in sys.meta_path:
                sys.meta_path.insert(0, self)  # it is one, without importing importlib.abc (9 ms)

    def close(self) -> None:
        """Await nothing any more."""
        with self._lock:
            self._actions.clear()
            self._leave()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._actions or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            spec = self._found(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self._watch(fullname, spec.loader)
            return spec
        finally:
            self._finding.discard(fullname)

    def _found(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _watch(self, name: str, loader: Any) -> None:
        """Shadow `exec_module` of this one loader, until it has run."""
        try:
            original = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                original(module)
                self._imported(name, module)

            loader.exec_module = exec_module
        except Exception as error:
            self._on_error(f"import.{name}"[:64], error)

    def _imported(self, name: str, module: ModuleType) -> None:
        with self._lock:
            actions = self._actions.pop(name, [])
            if not self._actions:
                self._leave()
        self._run(name, module, actions)

    def _run(self, name: str, module: ModuleType, actions: Iterable[Action]) -> None:
        for action in actions:
            try:
                action(module)
            except Exception as error:
                self._on_error(f"import.{name}"[:64], error)

    def _leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
