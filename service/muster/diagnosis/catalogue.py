"""The diagnoses that there are: files of queries/, checked as a whole when they are loaded.

Checked is all that can be without a job: the format, that every statement binds (steps on empty tables of the registry,
the rest on empty results of the steps), and that every message reads columns that its finding has. A catalogue that loads
cannot fail on a typing mistake later.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

import muster
from muster.diagnosis.imports import expanded
from muster.diagnosis.params import parse, used
from muster.diagnosis.schema import LANGS, Diagnosis, Parameter, Step
from muster.diagnosis.source import Path_, Source
from muster.diagnosis.template import fields
from muster.diagnosis.workspace import COVERAGE, RECORDED, ROSTER, Desk, Workspace
from muster.errors import ConfigError, DiagnosisNotFound, MusterError, SqlBind
from muster.model import ColumnType, Kind, Severity
from muster.sql import information, params
from muster.sql.bind import Binder
from muster.sql.dialect import write
from muster.sql.guard import guard
from muster.sql.plan import Catalogue, ParamValue
from muster.tables import GATEWAY_TABLES, REGISTRY

PACKAGED = Path(muster.__file__).parent / "_queries"
_SAMPLES: Mapping[str, ParamValue] = {"int": 1, "float": 1.0, "bool": True, "text": "x"}
Bound = tuple[tuple[ColumnType, ...], frozenset[str]]
_TYPED = {"ranks": "[]", "victims": "[]", "hosts": "VARCHAR[]", "next": "VARCHAR[]"}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A diagnosis, where it came from, and of each step the columns of its result and the tables of the job it reads."""

    diagnosis: Diagnosis
    path: Path
    columns: Mapping[str, tuple[ColumnType, ...]]
    tables: Mapping[str, frozenset[str]]


class DiagnosisCatalogue:
    """Loaded diagnoses by id, in order of id."""

    def __init__(self, loaded: Sequence[Loaded]) -> None:
        self._loaded = {x.diagnosis.id: x for x in sorted(loaded, key=lambda x: x.diagnosis.id)}

    def __iter__(self) -> Iterator[Loaded]:
        return iter(self._loaded.values())

    def __len__(self) -> int:
        return len(self._loaded)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._loaded)

    def get(self, id: str) -> Loaded:
        """Raises DiagnosisNotFound naming the nearest."""
        found = self._loaded.get(id)
        if found is None:
            close = difflib.get_close_matches(id, self.ids, n=1)
            nearest = f"Did you mean {close[0]}? " if close else ""
            raise DiagnosisNotFound(
                f"There is no diagnosis {id[:80]!r}.", hint=f"{nearest}There are: {', '.join(self.ids) or 'none'}."
            )
        return found


def load(dirs: Sequence[Path] = (), *, packaged: bool = True) -> DiagnosisCatalogue:
    """The packaged diagnoses and those of `dirs`; a later file with an id replaces an earlier one. The same unchanged files
    are checked once per process.

    Raises ConfigError naming file and line.
    """
    whole = (*([PACKAGED] if packaged else []), *dirs)
    return _load(tuple(dirs), packaged, tuple(stamp for d in whole for stamp in _stamps(d)))


@lru_cache(maxsize=8)
def _load(dirs: tuple[Path, ...], packaged: bool, stamps: tuple[object, ...]) -> DiagnosisCatalogue:
    with Checker() as checker:
        return DiagnosisCatalogue([checker.check(source) for source in read(dirs, packaged=packaged).values()])


def _stamps(directory: Path) -> list[tuple[str, int, int]]:
    """What changes when a file of a directory does."""
    found = [(path, path.stat()) for path in sorted(directory.glob("*.yaml"))]
    return [(str(path), stat.st_mtime_ns, stat.st_size) for path, stat in found]


class Checker:
    """Checks files on empty tables of the registry; a context manager."""

    def __init__(self) -> None:
        known = [t for n, t in REGISTRY.items() if n not in GATEWAY_TABLES]
        self.tables = Catalogue({t.full_name: tuple(ColumnType(c.name, c.type) for c in t.columns) for t in known})
        self._binder = Binder(self.tables)
        self._desk = Desk(memory_limit="128MB")
        self._bound: dict[object, Bound] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._desk.close()

    def check(self, source: Source) -> Loaded:
        """Raises ConfigError naming file and line."""
        return _check(source, self._bind, self._desk)

    def _bind(self, step: Step, parameters: Mapping[str, Parameter]) -> Bound:
        """Columns of a step's result, and the tables of the job that it reads. What several import is bound once. Raises
        what the guard and the binder raise."""
        values = {n: sample(p) for n, p in used(step.sql, parameters).items()}
        key = (step.sql, tuple((step.columns or {}).items()), tuple(values.items()))
        if key not in self._bound:
            self._bound[key] = _bind(step, values, self._binder)
        return self._bound[key]


def sample(parameter: Parameter) -> ParamValue:
    """A value to plan with: the default, or one of the type."""
    return parameter.default if parameter.default is not None else _SAMPLES[parameter.type]


def read(
    dirs: Sequence[Path] = (), *, packaged: bool = True, problems: list[ConfigError] | None = None
) -> dict[str, Source]:
    """The files that `load` checks, by id, with what they import. Raises ConfigError naming file and line; with `problems`
    a file that is wrong is left out and its error put there."""
    sources: dict[str, Source] = {}
    for directory in [*([PACKAGED] if packaged else []), *dirs]:
        if not directory.is_dir():
            raise ConfigError(f"{directory} is not a directory of diagnoses.", hint="Give a directory of *.yaml files.")
        here: dict[str, Source] = {}
        for path in sorted(directory.glob("*.yaml")):
            with _into(problems):
                source = Source(path)
                id = source.diagnosis.id
                if id in here:
                    raise source.error(("id",), f"{id} is also the id of {here[id].path.name}")
                here[id] = source
        sources |= here
    whole: dict[str, Diagnosis] = {}
    for id, source in sources.items():
        with _into(problems):
            whole[id] = expanded(source, sources)
    for id, diagnosis in whole.items():
        sources[id].expand(diagnosis)
    return {id: sources[id] for id in whole}


@contextmanager
def _into(problems: list[ConfigError] | None) -> Iterator[None]:
    """Collect a ConfigError; None lets it pass."""
    try:
        yield
    except ConfigError as error:
        if problems is None:
            raise
        problems.append(error)


def _check(source: Source, bind: Callable[[Step, Mapping[str, Parameter]], Bound], desk: Desk) -> Loaded:
    diagnosis = source.diagnosis
    _check_parameters(source)
    columns: dict[str, tuple[ColumnType, ...]] = {}
    tables: dict[str, frozenset[str]] = {}
    for i, step in enumerate(diagnosis.steps):
        try:
            columns[step.name], tables[step.name] = bind(step, diagnosis.parameters)
        except MusterError as error:
            hint = error.hint or ""
            if isinstance(error, SqlBind) and "table" in error.extra:
                hint += " Name the result's columns (columns: {name: type}) where the step reads a table of your own."
            text = f"step {step.name}: {error.detail} {hint}".strip()
            raise source.sql_error(("steps", i, "sql"), text, error.position) from None
    used = frozenset().union(*tables.values())
    missing = used - set(diagnosis.requires)
    idle = set(diagnosis.requires) - used
    if missing or idle:
        what = (
            f"{', '.join(sorted(missing))} is read but not named" if missing else f"{', '.join(sorted(idle))} is not read"
        )
        raise source.error(("requires",), f"requires: {what}")
    for i, question in enumerate(diagnosis.checks):
        unread = set(question.needs) - used
        if unread:
            raise source.error(
                ("checks", i, "needs"), f"check {question.name}: {', '.join(sorted(unread))} is not read by any step"
            )
    with desk.workspace(30.0) as workspace:
        for name, step_columns in columns.items():
            workspace.add(name, step_columns, None)
        workspace.add("roster", ROSTER, None)
        workspace.add("coverage", COVERAGE, None)
        workspace.add("recorded", RECORDED, None)
        workspace.add_params(diagnosis.parameters, {n: p.default for n, p in diagnosis.parameters.items()})
        _check_local(source, workspace, columns)
    return Loaded(diagnosis, source.path, columns, tables)


def _check_parameters(source: Source) -> None:
    for name, parameter in source.diagnosis.parameters.items():
        if parameter.default is not None:
            try:
                parse(name, parameter, parameter.default)
            except MusterError as error:
                raise source.error(("parameters", name, "default"), f"the default does not fit: {error.detail}") from None


def _bind(step: Step, values: Mapping[str, ParamValue], binder: Binder) -> Bound:
    guarded = guard(step.sql, tables=None if step.columns else binder.names)
    used = frozenset(guarded.tables) - GATEWAY_TABLES.keys()
    if step.columns:
        return tuple(ColumnType(n, t) for n, t in step.columns.items()), used
    information.rename(guarded.tree)
    binder.prepare({information.planned(t) for t in guarded.tables})
    params.bind(guarded.tree, values)
    return binder.describe(write(guarded.tree)), used


def _check_local(source: Source, workspace: Workspace, steps: Mapping[str, tuple[ColumnType, ...]]) -> None:
    diagnosis = source.diagnosis
    place: Path_ = ()
    what = ""
    try:
        for i, derived in enumerate(diagnosis.derived):
            place, what = ("derived", i, "sql"), derived.name
            workspace.describe(derived.sql)
            workspace.derive(derived.name, derived.sql)
        for i, check in enumerate(diagnosis.checks):
            place, what = ("checks", i, "sql"), check.name
            if check.sql is not None and {c.name for c in workspace.describe(check.sql)} != {"gate", "observed"}:
                raise source.error(place, f"check {check.name}: its columns must be gate and observed")
        for i, fact in enumerate(diagnosis.facts):
            place, what = ("facts", i, "sql"), fact.name
            workspace.describe(fact.sql)
        for i, finding in enumerate(diagnosis.findings):
            place, what = ("findings", i, "sql"), finding.name
            _check_finding(source, i, workspace.describe(finding.sql), steps[finding.step])
    except ConfigError:
        raise
    except MusterError as error:
        raise source.sql_error(place, f"{what}: {error.detail}", error.position) from None


def _check_finding(source: Source, i: int, found: Sequence[ColumnType], step: Sequence[ColumnType]) -> None:
    finding = source.diagnosis.findings[i]
    columns = {c.name: c.type for c in found}
    place: Path_ = ("findings", i)
    for lang in LANGS:
        try:
            unknown = {name for name, _ in fields(finding.message.of(lang))} - columns.keys()
        except ValueError as error:
            raise source.error((*place, "message", lang), f"finding {finding.name}: {error}") from None
        if unknown:
            raise source.error(
                (*place, "message", lang), f"finding {finding.name}: no column {', '.join(sorted(unknown))} for its message"
            )
    for name, fixed, values in (("severity", finding.severity, Severity), ("kind", finding.kind, Kind)):
        if (fixed is None) != (name in columns):
            raise source.error(
                (*place, "sql"),
                f"finding {finding.name}: give its {name} once, fixed or as a column ({', '.join(values)})",
            )
    for name, ending in _TYPED.items():
        if name in columns and not columns[name].endswith(ending):
            raise source.error((*place, "sql"), f"finding {finding.name}: {name} must be a list, not {columns[name]}")
    unknown = set(finding.evidence) - {c.name for c in step}
    if unknown:
        raise source.error(
            (*place, "evidence"), f"finding {finding.name}: the step {finding.step} has no {', '.join(sorted(unknown))}"
        )
