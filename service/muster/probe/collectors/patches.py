"""Replace functions of modules, now or when they are imported, and put them back."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from muster.probe.recorder import Recorder

Hook = Callable[[ModuleType], None]


class Patches:
    """All patches of one recording. Errors are counted, never raised: an import of the script must not fail for us."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._done: list[tuple[Any, str, Any, Any]] = []
        self._finder = _Finder(self._run)
        self._undo: list[Callable[[], None]] = []
        self.removed = False

    def when_imported(self, module: str, hook: Hook) -> None:
        """Call `hook` with the module: now if it is imported, else right after it is, before its importer goes on."""
        loaded = sys.modules.get(module)
        if loaded is not None and not _initializing(loaded):
            self._run(hook, loaded)
        else:
            self._finder.add(module, hook)

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any], *, everywhere: bool = False) -> None:
        """Put `make(original)` in place of an attribute, if there is one. `everywhere`: also where other modules have
        imported the original by name already."""
        original = getattr(owner, name, None)
        if original is None or getattr(original, "_muster", False):
            return
        try:
            wrapper = make(original)
            wrapper._muster = True
        except Exception as error:
            self._recorder.count_error(f"patch.{name}", error)
            return
        self._set(owner, name, original, wrapper)
        if everywhere:
            for module in list(sys.modules.values()):
                if module is not owner and getattr(module, "__dict__", {}).get(name) is original:
                    self._set(module, name, original, wrapper)

    def on_remove(self, undo: Callable[[], None]) -> None:
        """Something else to do at removal."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Put everything back that nobody else has replaced since."""
        self.removed = True
        self._finder.remove()
        for owner, name, original, wrapper in reversed(self._done):
            if getattr(owner, "__dict__", {}).get(name) is wrapper:
                setattr(owner, name, original)
        self._done.clear()
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _set(self, owner: Any, name: str, original: Any, wrapper: Any) -> None:
        try:
            setattr(owner, name, wrapper)
            self._done.append((owner, name, original, wrapper))
        except (AttributeError, TypeError) as error:
            self._recorder.count_error(f"patch.{name}", error)

    def _run(self, hook: Hook, module: ModuleType) -> None:
        try:
            hook(module)
        except Exception as error:
            self._recorder.count_error(f"import.{module.__name__}"[:64], error)


class _Finder(importlib.abc.MetaPathFinder):
    """Stands first in sys.meta_path while modules are waited for; finds them by the other finders and adds to their
    loader."""

    def __init__(self, run: Callable[[Hook, ModuleType], None]) -> None:
        self._run = run
        self._hooks: dict[str, list[Hook]] = {}

    def add(self, module: str, hook: Hook) -> None:
        self._hooks.setdefault(module, []).append(hook)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        self._hooks.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._hooks:
            return None
        for finder in list(sys.meta_path):
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        if spec.loader is not None and hasattr(spec.loader, "exec_module"):
            self._wrap(fullname, spec.loader)
        return spec

    def _wrap(self, name: str, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            for hook in self._hooks.pop(name, []):
                self._run(hook, module)
            if not self._hooks and self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = exec_module


def _initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
