"""The format of a file of queries/: one diagnosis, with its parameters, SQL steps, checks, findings and texts.

What a diagnosis concludes is written in SQL only. `steps` run over the whole job by federation. Over their results, each a
table of the step's name, run in this order: `derived` (named intermediate tables), `checks` (one row each: may the check
conclude, and what did it observe), `findings` (each row is a finding), `facts` (one row each, for the report).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from muster.model import Kind, Severity

FORMAT = 1
Lang = Literal["en", "zh"]
LANGS: tuple[Lang, ...] = ("en", "zh")
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Sql = Annotated[str, StringConstraints(min_length=1, max_length=16 << 10)]
ParameterType = Literal["int", "float", "bool", "text"]
RESERVED = frozenset({"roster", "coverage", "recorded", "params"})
"""Relations that every diagnosis has beside its steps."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Text(_Part):
    """The same text in every language."""

    en: str = Field(min_length=1)
    zh: str = Field(min_length=1)

    def of(self, lang: Lang) -> str:
        return self.zh if lang == "zh" else self.en


class Parameter(_Part):
    """A typed value that a caller may set. `default` null means: not set (SQL sees NULL)."""

    type: ParameterType
    default: bool | int | float | str | None = None
    min: float | None = None
    max: float | None = None
    unit: str = ""
    doc: Text


class Step(_Part):
    """One named SELECT over the job. A diagnosis that misses ranks in a `required` step cannot pass. Where a step fails,
    checks and findings that read it do not run and their check is `unknown`, unless it is a `supplement`: what only adds to
    what is concluded without it, and is then empty.

    `columns` (name to DuckDB type) is needed only where the step reads tables that Muster does not know by itself.
    """

    name: Name
    doc: Text
    sql: Sql
    required: bool = False
    supplement: bool = False
    columns: dict[str, str] | None = None


class Derived(_Part):
    """A table made of the step results, for the statements after it."""

    name: Name
    doc: str
    sql: Sql


class Check(_Part):
    """One question that the diagnosis answers. Its SQL gives one row: `gate` (NULL: the check can conclude; else the name
    of the gate that stops it) and `observed`. Checks without SQL have no gate.

    A check whose step reads tables none of which is recorded on any rank is stopped by itself; so is one that `needs` a
    table that no rank records. A `required` check that is stopped makes `unknown` of `pass`, where its diagnosis was asked
    for by name.
    """

    name: Name
    title: Text
    step: Name
    required: bool = False
    unit: str = ""
    sql: Sql | None = None
    needs: list[str] = []


class Finding(_Part):
    """Every row of `sql` is a finding. Columns with a meaning: `severity` and `kind` (where not fixed here), `ranks`,
    `victims` (lists of ranks), `hosts`, `observed`, `threshold`, `confidence`, `onset_step`, `onset_ns`, `next` (a list of
    diagnoses, before those named here). All columns may stand in the message as {column} or {column:format}. `evidence`
    names columns of the step: its rows of the ranks concerned are shown."""

    name: Name
    check: Name
    step: Name
    sql: Sql
    message: Text
    severity: Severity | None = None
    kind: Kind | None = None
    evidence: list[Name] = []
    next: list[Name] = []


class Fact(_Part):
    """One row for the report, such as the last checkpoint."""

    name: Name
    sql: Sql


class Diagnosis(_Part):
    """A file of queries/.

    `imports` (id of another diagnosis to names of its steps and derived tables) takes these over, with the parameters that
    they read. `recording` says how to get a table recorded, for tables that Muster does not know by itself.
    """

    format: Literal[1]
    id: Name
    title: Text
    asks: Text
    requires: list[str]
    recording: dict[str, Text] = {}
    imports: dict[Name, list[Name]] = {}
    parameters: dict[Name, Parameter] = {}
    steps: list[Step] = []
    derived: list[Derived] = []
    gates: dict[Name, Text] = {}
    checks: list[Check] = Field(min_length=1)
    findings: list[Finding] = []
    facts: list[Fact] = []
    related: list[Name] = []

    @property
    def required_steps(self) -> frozenset[str]:
        return frozenset(s.name for s in self.steps if s.required)

    @model_validator(mode="after")
    def _names(self) -> Self:
        imported = [n for names in self.imports.values() for n in names]
        steps = {s.name for s in self.steps} | set(imported)
        if not steps:
            raise ValueError("steps: there is none")
        relations = [*imported, *(s.name for s in self.steps), *(d.name for d in self.derived)]
        for names, what in (
            (relations, "step or derived table"),
            ([c.name for c in self.checks], "check"),
            ([f.name for f in self.findings], "finding"),
        ):
            twice = {n for n in names if names.count(n) > 1}
            if twice:
                raise ValueError(f"{what} {', '.join(sorted(twice))} is there twice")
        taken = RESERVED & set(relations)
        if taken:
            raise ValueError(f"{', '.join(sorted(taken))} is the name of a relation that every diagnosis has")
        checks = {c.name for c in self.checks}
        for name, step in [(c.name, c.step) for c in self.checks] + [(f.name, f.step) for f in self.findings]:
            if step not in steps:
                raise ValueError(f"{name} names the step {step}, which is not there")
        for finding in self.findings:
            if finding.check not in checks:
                raise ValueError(f"finding {finding.name} names the check {finding.check}, which is not there")
        return self
