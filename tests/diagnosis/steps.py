"""Every step of a diagnosis against one DuckDB that holds the rows of all ranks, and small helpers to read evaluations."""

from __future__ import annotations

from collections.abc import Mapping

from diagnosis.histories import Cluster, History, whole
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.diagnosis.evaluation import CheckResult, Evaluation
from muster.model import Finding, Severity
from muster.sql.plan import Exactness, OutputColumn, ParamValue, Statement
from oracle import Oracle, differences, named_params


def assert_steps_equal_one_duckdb(e: Evaluation, catalogue: DiagnosisCatalogue, cluster: Cluster, history: History) -> None:
    """All steps of the evaluated diagnoses, in order and to the last value. Tables that nobody has are left out: there the
    one DuckDB has nothing to say."""
    tables, nodes = whole(history, cluster.view(history))
    oracle = Oracle(tables, nodes)
    compared = 0
    for id in e.diagnoses:
        loaded = catalogue.get(id)
        values: Mapping[str, ParamValue] = e.parameters[id]
        for step in loaded.diagnosis.steps:
            if not loaded.tables[step.name] <= tables.keys() or "information_schema" in step.sql:
                continue
            got = next(s for s in e.steps if s.name == step.name and s.diagnosis == id)
            assert got.error is None, got.error
            used = named_params(step.sql, values)
            want = oracle.run(Statement(step.name, step.sql, used))
            assert got.table is not None
            floats = [
                c if c.exactness is Exactness.FLOAT else OutputColumn(c.name, c.type, _strict(c)) for c in got.columns
            ]
            assert differences(got.table, want, floats, ordered=True) is None, step.name
            assert [c.name for c in got.columns] == want.column_names
            compared += 1
    assert compared


def _strict(column: OutputColumn) -> Exactness:
    """No freedom but the order in which floats are added, where the planner cannot rule out more."""
    loose = column.exactness is Exactness.ARBITRARY and column.type == "DOUBLE"
    return Exactness.FLOAT if loose else Exactness.EXACT


def loud(e: Evaluation) -> list[Finding]:
    """Findings that are not for information."""
    return [f for f in e.findings if f.severity is not Severity.INFO]


def only(e: Evaluation) -> Finding:
    """The one finding that is not for information."""
    found = loud(e)
    assert len(found) == 1, [(f.id, f.message) for f in found]
    return found[0]


def named(e: Evaluation, id: str) -> Finding:
    """The one finding of a name."""
    found = [f for f in e.findings if f.id == id]
    assert len(found) == 1, [(f.id, f.message) for f in e.findings]
    return found[0]


def check(e: Evaluation, name: str) -> CheckResult:
    return next(c for c in e.checks if c.name == name)
