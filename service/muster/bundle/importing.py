"""Tell what a path holds, and make a bundle of it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa

from muster.bundle.convert import from_parquet, from_tables, sound_part, table_files
from muster.bundle.manifest import NAME, Manifest
from muster.bundle.rings import from_rings, is_rings
from muster.errors import BadRequest, NotFound

Kind = Literal["rings", "bundle", "parquet", "flight_recorder", "trace"]
_FLIGHT_RECORDER = "muster.bundle.flight_recorder"
_TRACES = "muster.bundle.traces"


def kind_of(path: Path) -> Kind:
    """What a path holds. Raises NotFound where there is nothing, BadRequest for what is nothing known."""
    if path.is_file():
        if path.suffix == ".parquet":
            return "trace"
        raise BadRequest(f"{path} is a file of no known kind.", hint=_KINDS)
    if not path.is_dir():
        raise NotFound(f"There is no {path}.", hint=_KINDS)
    if is_rings(path):
        return "rings"
    if (path / NAME).is_file():
        return "bundle"
    if table_files(path):
        return "parquet"
    if any(p.is_file() and not p.name.startswith(".") for p in path.iterdir()):
        return "flight_recorder"
    raise BadRequest(f"{path} holds nothing that is known.", hint=_KINDS)


def import_bundle(
    sources: Sequence[Path], out: Path, *, kind: Kind | None = None, job: str | None = None, meta: Path | None = None
) -> Manifest:
    """Write a bundle and return its manifest.

    `sources`: one path, or the directories that `muster run` left on the nodes of one job. `kind`: what they are, where
    `kind_of` cannot tell. `job`: its id (else from the name of the path). `meta`: the YAML file of a trace (else the one
    beside it). Raises NotFound, BadRequest, TooLarge, Conflict.
    """
    found = kind or kind_of(sources[0])
    if found == "rings":
        if job is not None:
            raise BadRequest("Ring files say themselves of which job they are.", hint="Leave --job out.")
        return from_rings(sources, out)
    if len(sources) > 1:
        raise BadRequest("Only what `muster run` left on several nodes is imported together.", hint="Give one source.")
    source = sources[0]
    if found == "bundle":
        return sound_part(source, out)
    named = job or _job_id(source)
    if found == "parquet":
        return from_parquet(source, out, job=named)
    if found == "trace":
        tables = _loader(_TRACES)(source, meta or _meta_of(source))
        return from_tables(tables, out, job=named, kind=found, of=source.name)
    return from_tables(_loader(_FLIGHT_RECORDER)(source), out, job=named, kind=found, of=source.name)


def _meta_of(trace: Path) -> Path:
    """The YAML file of a trace: of the same name, or (`trace-X.parquet`) `meta-X.yaml`."""
    beside = [trace.with_suffix(".yaml"), trace.with_name(f"meta-{trace.stem.removeprefix('trace-')}.yaml")]
    for path in beside:
        if path.is_file():
            return path
    raise NotFound(f"There is no {beside[0].name} or {beside[1].name} beside {trace}.", hint="Name it with --meta FILE.")


def _loader(module: str) -> Callable[..., Mapping[str, pa.Table]]:
    try:
        load: Callable[..., Mapping[str, pa.Table]] = importlib.import_module(module).load
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise BadRequest(f"This Muster cannot read that: {module} is not part of it.", hint=_KINDS) from None
    return load


def _job_id(path: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.resolve().name.removesuffix(".parquet"))[:128]
    return name or "imported"


_KINDS = (
    "Give a directory that `muster run` left, a directory of <schema>.<table>.parquet files, a folder of flight-recorder"
    " dumps, the parquet file of a public straggler trace, or a bundle; or say what it is with --kind."
)
