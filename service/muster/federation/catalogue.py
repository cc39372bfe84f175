"""What a job offers to plan against: the tables of its shards over those of the registry, and how alike the shards are."""

from __future__ import annotations

from muster.engine import PROFILE, engine_name
from muster.model import ColumnType, JobView, ShardInfo, ShardKind
from muster.sql.plan import Catalogue
from muster.sql.types import widens
from muster.tables import GATEWAY_TABLES, REGISTRY, TAG_NAMES


def catalogue_of(view: JobView) -> Catalogue:
    """Every table of the registry and of the view's shards, united by column name, without the tags.

    Where two shards say different types for a column, the registry's counts, else the wider one, else that of the shard
    named first. Tables that only agents add are owned by ranks: an agent tags every row of them.
    """
    tables: dict[str, dict[str, str]] = {
        name: {c.name: c.type for c in t.columns} for name, t in REGISTRY.items() if name not in GATEWAY_TABLES
    }
    foreign: set[str] = set()
    for shard in sorted(view.shards, key=lambda s: s.id):
        for name, columns in (shard.tables or {}).items():
            if name in GATEWAY_TABLES:
                continue
            known = tables.setdefault(name, {})
            if shard.kind not in (ShardKind.AGENT, ShardKind.BUNDLE):
                foreign.add(name)
            for column in columns:
                if column.name in TAG_NAMES:
                    continue
                kind = known.setdefault(column.name, column.type)
                if name not in REGISTRY and widens(kind, column.type):
                    known[column.name] = column.type
    found = {name: tuple(ColumnType(n, t) for n, t in columns.items()) for name, columns in sorted(tables.items())}
    owned = frozenset(n for n in found if n not in REGISTRY and n not in foreign)
    return Catalogue(found, owned, *_likeness(view))


def _likeness(view: JobView) -> tuple[bool, bool, str | None]:
    """Whether aggregate states may travel, whether anything but rows may, and why not (DESIGN: one engine profile)."""
    other = [s for s in view.shards if s.profile is None or any(s.profile.get(k) != v for k, v in PROFILE.items())]
    if other:
        return False, False, f"{_shards(other)} with other settings of the engine than the gateway"
    older = [s for s in view.shards if s.engine != engine_name()]
    if older:
        engine = older[0].engine or "an unknown engine"
        return False, True, f"{_shards(older)} {engine}, the gateway runs {engine_name()}"
    return True, True, None


def _shards(found: list[ShardInfo]) -> str:
    return f"{found[0].addr} runs" if len(found) == 1 else f"{found[0].addr} and {len(found) - 1} more run"
