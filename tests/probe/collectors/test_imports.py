"""Actions that run when a module is imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from muster.probe.collectors.imports import PostImport


class Errors:
    def __init__(self) -> None:
        self.counted: list[tuple[str, str]] = []

    def count(self, where: str, error: BaseException | str) -> None:
        self.counted.append((where, str(error)))


@pytest.fixture
def errors() -> Errors:
    return Errors()


@pytest.fixture
def imports(errors: Errors) -> Iterator[PostImport]:
    made = PostImport(errors.count)
    yield made
    made.close()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `awaited_one` with a module `inner`, from which its `__init__` takes a name."""
    root = tmp_path / "awaited_one"
    root.mkdir()
    (root / "inner.py").write_text("name = 'original'\n")
    (root / "__init__.py").write_text("from awaited_one.inner import name\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield root
    for name in [n for n in sys.modules if n.startswith("awaited_one")]:
        del sys.modules[name]


def rename(module: ModuleType) -> None:
    module.name = "replaced"  # type: ignore[attr-defined]


def test_an_action_runs_before_the_importer_goes_on(imports: PostImport, package: Path) -> None:
    imports.when("awaited_one.inner", rename)
    assert importlib.import_module("awaited_one").name == "replaced"


def test_a_module_that_is_there_is_acted_on_at_once(imports: PostImport, package: Path) -> None:
    module = importlib.import_module("awaited_one.inner")
    imports.when("awaited_one.inner", rename)
    assert module.name == "replaced"
    assert imports not in sys.meta_path


def test_the_finder_leaves_when_nothing_is_awaited(imports: PostImport, package: Path) -> None:
    imports.when("awaited_one.inner", rename)
    assert imports in sys.meta_path
    importlib.import_module("awaited_one")
    assert imports not in sys.meta_path


def test_looking_for_a_module_is_not_importing_it(imports: PostImport, package: Path) -> None:
    imports.when("awaited_one", rename)
    assert importlib.util.find_spec("awaited_one") is not None
    assert imports in sys.meta_path
    assert importlib.import_module("awaited_one").name == "replaced"


def test_an_action_that_fails_is_counted_and_the_import_goes_on(imports: PostImport, package: Path, errors: Errors) -> None:
    def fail(_: ModuleType) -> None:
        raise ValueError("no")

    imports.when("awaited_one", fail)
    imports.when("awaited_one", rename)
    assert importlib.import_module("awaited_one").name == "replaced"
    assert errors.counted == [("import.awaited_one", "no")]


def test_an_import_that_fails_is_awaited_again(imports: PostImport, package: Path, errors: Errors) -> None:
    source = package / "inner.py"
    good = source.read_text()
    source.write_text("raise RuntimeError('broken')\n")
    imports.when("awaited_one.inner", rename)
    with pytest.raises(RuntimeError, match="broken"):
        importlib.import_module("awaited_one")
    source.write_text(good + "# other size\n")
    importlib.invalidate_caches()
    assert importlib.import_module("awaited_one").name == "replaced"
    assert errors.counted == []


def test_a_module_that_does_not_exist_stays_unknown(imports: PostImport) -> None:
    imports.when("awaited_never", rename)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("awaited_never")


def test_closing_awaits_nothing_any_more(imports: PostImport, package: Path) -> None:
    imports.when("awaited_one", rename)
    imports.close()
    assert imports not in sys.meta_path
    assert importlib.import_module("awaited_one").name == "original"
