"""What a file of queries/ says of itself, as Markdown for its page; the index of all; the JSON schema of the format.

Pages are written by people; the part between the two marks is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from muster.diagnosis.catalogue import DiagnosisCatalogue, Loaded
from muster.diagnosis.recording import HOW
from muster.diagnosis.schema import Diagnosis, Finding, Parameter
from muster.errors import ConfigError

BEGIN = "<!-- generated from the file: begin -->"
END = "<!-- generated from the file: end -->"
SCHEMA_FILE = "queries.schema.json"


def schema() -> dict[str, Any]:
    """JSON schema of a file of queries/."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:muster:queries:1",
        **Diagnosis.model_json_schema(mode="validation"),
    }


def schema_text() -> str:
    """The schema as it is checked in."""
    return orjson.dumps(schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode() + "\n"


def page(loaded: Loaded) -> str:
    """The generated part of a diagnosis's page, without the marks."""
    d = loaded.diagnosis
    parts = [
        f"**{d.asks.en}** {d.asks.zh}",
        _table(("parameter", "default", "bounds", "meaning"), [_parameter(n, p) for n, p in d.parameters.items()]),
        _table(("step", "required", "from", "gives"), [
            (f"`{s.name}`", "yes" if s.required else "no", _names(sorted(loaded.tables[s.name])) or "the roster", s.doc.en)
            for s in d.steps
        ]),
        _table(("check", "required", "from", "asks", "needs"), [
            (f"`{c.name}`", "yes" if c.required else "no", f"`{c.step}`", c.title.en, _names(c.needs)) for c in d.checks
        ]),
        _table(("finding", "severity", "kind", "check", "says", "next"), [_finding(f) for f in d.findings]),
        _table(("gate", "opened by"), [
            *((f"`{n}`", t.en) for n, t in d.gates.items()), ("`not_recorded`", "Recording the table; see below."),
        ]),
        _table(("table", "how to get it recorded"), [
            (f"`{t}`", (d.recording.get(t) or HOW[t]).en if t in d.recording or t in HOW else "") for t in d.requires
        ]),
    ]  # fmt: skip
    if d.related:
        parts.append(f"Related: {', '.join(f'`{r}`' for r in d.related)}.")
    return "\n\n".join(p for p in parts if p) + "\n"


def index(catalogue: DiagnosisCatalogue, pages: Path | None = None) -> str:
    """The table of all diagnoses. `pages`: a directory; diagnoses that have a page there are linked."""
    rows = []
    for loaded in catalogue:
        d = loaded.diagnosis
        linked = pages is not None and (pages / f"{d.id}.md").is_file()
        name = f"[`{d.id}`](diagnoses/{d.id}.md)" if linked else f"`{d.id}`"
        rows.append((name, d.asks.en, _names(d.requires)))
    return _table(("diagnosis", "asks", "reads"), rows) + "\n"


def replaced(text: str, generated: str) -> str:
    """A page with its generated part put in place. Raises ConfigError where the marks are missing."""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise ConfigError("The page has no generated part.", hint=f"Put {BEGIN} and {END} on lines of their own.")
    return text[: begin + len(BEGIN)] + "\n\n" + generated + "\n" + text[end:]


def files(catalogue: DiagnosisCatalogue, docs: Path) -> Mapping[Path, str]:
    """The files of a documentation directory as they should be: schema, index, and every page that is there."""
    found = {docs / SCHEMA_FILE: schema_text()}
    home = docs / "diagnoses.md"
    if home.is_file():
        found[home] = replaced(home.read_text("utf-8"), index(catalogue, docs / "diagnoses"))
    for loaded in catalogue:
        path = docs / "diagnoses" / f"{loaded.diagnosis.id}.md"
        if path.is_file():
            text = path.read_text("utf-8")
            found[path] = replaced(text, page(loaded)) if BEGIN in text else text
    return found


def _parameter(name: str, p: Parameter) -> tuple[str, str, str, str]:
    default = "not set" if p.default is None else f"{str(p.default).lower() if isinstance(p.default, bool) else p.default}"
    low, high = (None if v is None else f"{v:g}" for v in (p.min, p.max))
    bounds = f"{low or ''} … {high or ''}".strip() if low or high else p.type
    return f"`{name}`", default, f"{bounds} {p.unit}".strip(), p.doc.en


def _finding(f: Finding) -> tuple[str, ...]:
    severity = f.severity.value if f.severity else "by the evidence"
    kind = f.kind.value if f.kind else "by the evidence"
    says = re.sub(r"\{(\w+)(:\w+)?\}", r"*\1*", f.message.en)
    return f"`{f.name}`", severity, kind, f"`{f.check}`", says, _names(f.next)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
