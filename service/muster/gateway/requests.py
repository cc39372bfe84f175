"""What requests say, read strictly: unknown parameters are refused by name, numbers have bounds."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from muster.errors import ParameterError
from muster.protocol import MAX_SQL_BYTES

ParamValue = bool | int | float | Annotated[str, StringConstraints(max_length=4096)] | None
Lang = Literal["en", "zh"]
HEALTH_PARAMETERS = frozenset({"diagnosis", "deadline", "min_coverage", "lang", "on_fail", "max_age", "explain"})


class QueryBody(BaseModel):
    """Body of `POST /jobs/{job}/query` and `/explain`."""

    model_config = ConfigDict(extra="forbid")

    sql: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SQL_BYTES)] = Field(
        description="One SELECT over the tables of the job, in DuckDB's dialect."
    )
    params: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")], ParamValue] = Field(
        default_factory=dict, max_length=64, description="Values of `$name` in the SQL."
    )
    deadline: float | None = Field(default=None, gt=0, le=600, description="Seconds.")
    on_partial: Literal["warn", "fail"] = Field(
        default="warn", description="`fail`: an answer that does not rest on all ranks is an error."
    )
    min_coverage: float = Field(default=0.0, ge=0, le=1, description="Share of ranks that must have answered.")
    max_rows: int | None = Field(default=None, ge=1, le=1_000_000, description="More rows are an error, never a cut.")
    use_global: bool = Field(default=True, description="false: only rank 0 is asked.")


def number(request: Request, name: str, default: float, low: float, high: float) -> float:
    """A number of the query string. Raises ParameterError."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise ParameterError(f"{name} is {text!r}, it must be a number.", parameter=name) from None
    if not low <= value <= high:
        raise ParameterError(f"{name} is {text}, it must be from {low:g} to {high:g}.", parameter=name)
    return value


def choice(request: Request, name: str, default: str, allowed: Collection[str]) -> str:
    """One of a few words of the query string. Raises ParameterError."""
    text = request.query_params.get(name, default)
    if text not in allowed:
        raise ParameterError(f"{name} is {text!r}, it must be one of {', '.join(sorted(allowed))}.", parameter=name)
    return text


def only(request: Request, allowed: Collection[str]) -> None:
    """Refuse query parameters that are not known, and those that come twice. Raises ParameterError naming the nearest."""
    for name in request.query_params:
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, n=2)
            hint = f"Did you mean {' or '.join(close)}?" if close else f"There is {', '.join(sorted(allowed)) or 'none'}."
            raise ParameterError(f"There is no parameter {name[:64]!r}.", hint=hint, parameter=name[:64])


def diagnosis_parameters(request: Request) -> Mapping[str, Any]:
    """Query parameters that are not the request's own: those of diagnoses. Raises ParameterError for one given twice."""
    found: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in HEALTH_PARAMETERS:
            continue
        if name in found:
            raise ParameterError(f"{name[:64]} is given twice.", parameter=name[:64])
        found[name] = value
    return found
