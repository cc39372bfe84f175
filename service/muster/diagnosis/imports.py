"""A diagnosis takes over steps and derived tables of another: what two ask in the same way is written once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.diagnosis.schema import Diagnosis
from muster.diagnosis.source import Source


def expanded(source: Source, others: Mapping[str, Source]) -> Diagnosis:
    """The diagnosis of a file with what it imports put before its own, in the order of the other file. Parameters that the
    imported SQL reads come along, unless it has them itself. Raises ConfigError naming file and line."""
    diagnosis = source.diagnosis
    for id, names in diagnosis.imports.items():
        place = ("imports", id)
        other = others[id].diagnosis if id in others else None
        if other is None:
            raise source.error(place, f"imports: there is no diagnosis {id}")
        if other.imports:
            raise source.error(place, f"imports: {id} imports something itself; import from where it is written")
        steps = [s for s in other.steps if s.name in names]
        derived = [d for d in other.derived if d.name in names]
        missing = set(names) - {s.name for s in steps} - {d.name for d in derived}
        if missing:
            raise source.error(place, f"imports: {id} has no {', '.join(sorted(missing))}")
        texts = " ".join([*(s.sql for s in steps), *(d.sql for d in derived)])
        read = {n: p for n, p in other.parameters.items() if re.search(rf"\b{n}\b", texts)}
        diagnosis = diagnosis.model_copy(
            update={
                "parameters": {**diagnosis.parameters, **{n: p for n, p in read.items() if n not in diagnosis.parameters}},
                "steps": [*steps, *diagnosis.steps],
                "derived": [*derived, *diagnosis.derived],
            }
        )
    return diagnosis.model_copy(update={"imports": {}}) if diagnosis.imports else diagnosis
