"""Parameters of diagnoses as callers give them: typed, bounded, and named in every error."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from muster.diagnosis.schema import Diagnosis, Parameter
from muster.errors import ParameterError
from muster.sql.plan import ParamValue

T = TypeVar("T")
MAX_TEXT = 256
_BOOLS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "text": "a text"}


def used(sql: str, values: Mapping[str, T]) -> dict[str, T]:
    """Those of `values` that a text names as `$name`; `$warmup_steps` is not `$warmup`."""
    return {name: value for name, value in values.items() if re.search(rf"\${name}\b", sql)}


def resolve(diagnoses: Sequence[Diagnosis], given: Mapping[str, ParamValue]) -> dict[str, dict[str, ParamValue]]:
    """Values of all parameters of each diagnosis, defaults filled in.

    `given` maps `step_window` (meant for every chosen diagnosis that has it) or `job_health.step_window` to a text or
    value. The fuller name wins. Raises ParameterError naming the parameter.
    """
    values: dict[str, dict[str, ParamValue]] = {d.id: {n: p.default for n, p in d.parameters.items()} for d in diagnoses}
    for name, raw in sorted(given.items(), key=lambda item: "." in item[0]):
        head, dot, short = name.partition(".")
        short = short if dot else head
        targets = [d for d in diagnoses if short in d.parameters and (not dot or d.id == head)]
        if not targets:
            raise _unknown(name, diagnoses)
        for diagnosis in targets:
            values[diagnosis.id][short] = parse(name, diagnosis.parameters[short], raw)
    return values


def parse(name: str, parameter: Parameter, raw: ParamValue) -> ParamValue:
    """One value; None gives the default. Raises ParameterError."""
    if raw is None:
        return parameter.default
    value = _typed(parameter, raw)
    if value is None:
        raise ParameterError(
            f"The parameter {name} is {str(raw)[:80]!r}, which is not {_WORDS[parameter.type]}.",
            hint=f"Give {_WORDS[parameter.type]}{_bounds(parameter)}, for example {name}={_example(parameter)}.",
            parameter=name,
        )
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    low, high = parameter.min, parameter.max
    if number is not None and ((low is not None and number < low) or (high is not None and number > high)):
        raise ParameterError(
            f"The parameter {name} is {value}, out of its bounds.",
            hint=f"Give {_WORDS[parameter.type]}{_bounds(parameter)}.",
            parameter=name,
        )
    return value


def _typed(parameter: Parameter, raw: ParamValue) -> ParamValue:
    text = str(raw).strip()
    if parameter.type == "text":
        return text if 0 < len(text) <= MAX_TEXT and "\x00" not in text else None
    if parameter.type == "bool":
        return _BOOLS.get(text.lower())
    if isinstance(raw, bool) or len(text) > 40 or "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    if parameter.type == "float":
        return number
    return int(number) if number == int(number) and abs(number) < 1 << 53 else None


def _bounds(parameter: Parameter) -> str:
    if parameter.min is not None and parameter.max is not None:
        return f" from {parameter.min:g} to {parameter.max:g}"
    if parameter.min is not None:
        return f" of at least {parameter.min:g}"
    return f" of at most {parameter.max:g}" if parameter.max is not None else ""


def _example(parameter: Parameter) -> str:
    if parameter.default is not None:
        return str(parameter.default).lower() if parameter.type == "bool" else f"{parameter.default}"
    return f"{parameter.min:g}" if parameter.min is not None else "1"


def _unknown(name: str, diagnoses: Sequence[Diagnosis]) -> ParameterError:
    short = name.partition(".")[2] or name
    known = sorted({n for d in diagnoses for n in d.parameters})
    full = [f"{d.id}.{n}" for d in diagnoses for n in d.parameters]
    close = difflib.get_close_matches(name, known + full, n=1, cutoff=0.4) or difflib.get_close_matches(short, known, n=1)
    nearest = f"Did you mean {close[0]}? " if close else ""
    return ParameterError(
        f"There is no parameter {name[:80]} in {', '.join(d.id for d in diagnoses)}.",
        hint=f"{nearest}Parameters: {', '.join(known) or 'none'}.",
        parameter=name[:80],
    )
