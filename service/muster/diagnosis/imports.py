"""A diagnosis takes over steps and derived tables of another: what two ask in the same way is written once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.diagnosis.schema import Derived, Diagnosis, Step
from muster.diagnosis.source import Source


def expanded(source: Source, others: Mapping[str, Source]) -> Diagnosis:
    """The diagnosis of a file with what it imports put before its own, in the order of the other file. Parameters that the
    SQL of either reads come along, unless the file has them itself. What is imported must be the other's own.

    Raises ConfigError naming file and line.
    """
    diagnosis = source.diagnosis
    if not diagnosis.imports:
        return diagnosis
    steps: list[Step] = []
    derived: list[Derived] = []
    parameters = dict(diagnosis.parameters)
    own = " ".join(_sql(diagnosis))
    for id, names in diagnosis.imports.items():
        place = ("imports", id)
        if id not in others:
            raise source.error(place, f"imports: there is no diagnosis {id}")
        other = others[id].diagnosis
        taken = [s for s in other.steps if s.name in names]
        tables = [d for d in other.derived if d.name in names]
        missing = set(names) - {s.name for s in taken} - {d.name for d in tables}
        if missing:
            raise source.error(
                place, f"imports: {id} has no {', '.join(sorted(missing))} of its own; import from where it is written"
            )
        texts = " ".join([own, *(s.sql for s in taken), *(d.sql for d in tables)])
        for name, parameter in other.parameters.items():
            if re.search(rf"\b{name}\b", texts):
                parameters.setdefault(name, parameter)
        steps += taken
        derived += tables
    return diagnosis.model_copy(
        update={
            "parameters": parameters,
            "steps": [*steps, *diagnosis.steps],
            "derived": [*derived, *diagnosis.derived],
            "imports": {},
        }
    )


def _sql(diagnosis: Diagnosis) -> list[str]:
    d = diagnosis
    parts = [[s.sql for s in d.steps], [t.sql for t in d.derived], [f.sql for f in d.findings], [f.sql for f in d.facts]]
    return [sql for part in parts for sql in part] + [c.sql for c in d.checks if c.sql is not None]
