"""YAML files with the place of every value, so that an error can name the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from muster.diagnosis.schema import Diagnosis
from muster.errors import ConfigError

MAX_BYTES = 256 << 10
Path_ = tuple[str | int, ...]
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same over libyaml, ten times as fast


class Source:
    """One file of queries/: its diagnosis, and the line of every value in it."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError naming file and line."""
        self.path = path
        self._lines: dict[Path_, int] = {}
        self._blocks: set[Path_] = set()
        self._before: dict[str | int, int] = {}
        data = self._read()
        try:
            self.diagnosis = Diagnosis.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = tuple(p for p in first["loc"] if isinstance(p, str | int))
            name = ".".join(str(p) for p in place) or "the file"
            raise self.error(place, f"{name}: {first['msg'].removeprefix('Value error, ')}") from None

    def expand(self, diagnosis: Diagnosis) -> None:
        """Take the diagnosis with what it imports, which stands before its own steps and derived tables."""
        self._before = {
            "steps": len(diagnosis.steps) - len(self.diagnosis.steps),
            "derived": len(diagnosis.derived) - len(self.diagnosis.derived),
        }
        self.diagnosis = diagnosis

    def error(self, place: Path_, message: str, *, lines: int = 0) -> ConfigError:
        """An error at a value, or that many lines into it."""
        place = self._own(place)
        while place and place not in self._lines:
            place = place[:-1]
        line = self._lines.get(place, 1) + lines
        return ConfigError(
            f"{self.path}:{line}: {message}", hint="See docs/diagnoses.md for the format.", file=str(self.path), line=line
        )

    def sql_error(self, place: Path_, message: str, position: tuple[int, int] | None) -> ConfigError:
        """An error in a statement; `position` is the place within its text. A block text begins below its key."""
        inline = 0 if self._own(place) in self._blocks else 1
        return self.error(place, message, lines=max(0, position[0] - inline) if position else 0)

    def _own(self, place: Path_) -> Path_:
        """The place in this file of a place in the expanded diagnosis."""
        before = self._before.get(place[0], 0) if place else 0
        if not before or len(place) < 2 or not isinstance(place[1], int):
            return place
        own = place[1] - before
        return (place[0], own, *place[2:]) if own >= 0 else ("imports",)

    def _read(self) -> Any:
        try:
            if self.path.stat().st_size > MAX_BYTES:
                raise ConfigError(f"{self.path} is larger than {MAX_BYTES} bytes.", hint="Split the diagnosis.")
            loader = _Loader(self.path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path} cannot be read: {error}", hint="Check the directory of diagnoses.") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{self.path}: {error}", hint="The file must be YAML.") from None
        try:
            node = loader.get_single_node()
            return {} if node is None else self._value(loader, node, ())
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ConfigError(f"{self.path}:{line}: {error.problem}", hint="The file must be YAML.", line=line) from None
        finally:
            loader.dispose()

    def _value(self, loader: yaml.SafeLoader, node: yaml.Node, place: Path_) -> Any:
        if len(place) > 12:
            raise self.error(place, "the file nests too deeply")
        self._lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            found: dict[Any, Any] = {}
            for key_node, value_node in node.value:
                key = loader.construct_object(key_node)
                inner = (*place, key)
                self._lines[inner] = key_node.start_mark.line + 1
                if key in found:
                    raise self.error(inner, f"{key} is there twice")
                found[key] = self._value(loader, value_node, inner)
            return found
        if isinstance(node, yaml.SequenceNode):
            return [self._value(loader, item, (*place, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            self._blocks.add(place)
        return loader.construct_object(node, deep=True)
