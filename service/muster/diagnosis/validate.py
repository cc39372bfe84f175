"""Check files of queries/ as a whole, for `muster queries check`: all that loading checks, and that every step can be
planned over a job, with every problem told and not only the first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.diagnosis.catalogue import Checker, Loaded, read, sample
from muster.diagnosis.params import used
from muster.diagnosis.schema import Diagnosis, Text
from muster.diagnosis.source import Source
from muster.errors import ConfigError, MusterError
from muster.sql.plan import Statement
from muster.sql.planner import Planner

_CHINESE = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True, slots=True)
class Report:
    """`problems` keep a catalogue from loading; `remarks` are worth a look. `statements`: SELECTs that were checked."""

    checked: tuple[Loaded, ...]
    problems: tuple[ConfigError, ...]
    remarks: tuple[str, ...]
    statements: int


def validate(dirs: Sequence[Path] = (), *, packaged: bool = True) -> Report:
    """Check the files of `dirs`, laid over the packaged ones, and these.

    Raises ConfigError for a directory that is none.
    """
    problems: list[ConfigError] = []
    remarks: list[str] = []
    checked: list[Loaded] = []
    sources = read(dirs, packaged=packaged, problems=problems)
    planner = Planner()
    with Checker() as checker:
        for source in sources.values():
            try:
                loaded = checker.check(source)
                _plan(source, loaded, planner, checker)
                checked.append(loaded)
            except ConfigError as error:
                problems.append(error)
    for loaded in checked:
        remarks += _remarks(loaded, sources.keys())
    return Report(tuple(checked), tuple(problems), tuple(remarks), sum(_count(x.diagnosis) for x in checked))


def _plan(source: Source, loaded: Loaded, planner: Planner, checker: Checker) -> None:
    """Every step as a statement over a job. A step over tables of one's own was bound by what it declares."""
    diagnosis = loaded.diagnosis
    for i, step in enumerate(diagnosis.steps):
        if step.columns is not None:
            continue
        values = {n: sample(p) for n, p in used(step.sql, diagnosis.parameters).items()}
        try:
            planner.plan([Statement(step.name, step.sql, values)], checker.tables)
        except MusterError as error:
            text = f"step {step.name} cannot be asked over a job: {error.detail} {error.hint or ''}".strip()
            raise source.sql_error(("steps", i, "sql"), text, error.position) from None


def _remarks(loaded: Loaded, ids: object) -> list[str]:
    d = loaded.diagnosis
    known = set(ids)  # type: ignore[call-overload]
    found = []
    named = [("related", d.related), *((f"finding {f.name}, next", f.next) for f in d.findings)]
    for where, names in named:
        missing = sorted(set(names) - known)
        if missing:
            found.append(f"{loaded.path.name}: {where}: there is no diagnosis {', '.join(missing)} (left out of answers)")
    unused = sorted(d.gates.keys() - {g for g in d.gates if any(f"'{g}'" in (c.sql or "") for c in d.checks)} - _told(d))
    if unused:
        found.append(f"{loaded.path.name}: no check gives the gate {', '.join(unused)}")
    for name, text in _texts(d):
        if not _CHINESE.search(text.zh):
            found.append(f"{loaded.path.name}: {name}: the Chinese text has no Chinese character")
    return found


def _told(d: Diagnosis) -> set[str]:
    """Gates that derived tables give."""
    return {g for g in d.gates if any(f"'{g}'" in t.sql for t in d.derived)}


def _texts(d: Diagnosis) -> list[tuple[str, Text]]:
    return [
        ("title", d.title),
        ("asks", d.asks),
        *((f"parameter {n}", p.doc) for n, p in d.parameters.items()),
        *((f"step {s.name}", s.doc) for s in d.steps),
        *((f"gate {n}", t) for n, t in d.gates.items()),
        *((f"check {c.name}", c.title) for c in d.checks),
        *((f"finding {f.name}", f.message) for f in d.findings),
    ]


def _count(d: Diagnosis) -> int:
    return len(d.steps) + len(d.derived) + len(d.findings) + len(d.facts) + sum(c.sql is not None for c in d.checks)
