"""The tables that a job offers: what its shards say, over what the registry knows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from muster.model import ColumnType, JobView
from muster.sql.plan import Catalogue
from muster.tables import NODES, REGISTRY, TAGS

_TAG_NAMES = frozenset(c.name for c in TAGS)


def catalogue_of(view: JobView) -> Catalogue:
    """Every table of the registry and of the view's shards, united by column name, without the tags.

    Where two shards say different types for a column, the registry's counts, else that of the shard named first.
    """
    tables: dict[str, dict[str, str]] = {
        name: {c.name: c.type for c in t.columns} for name, t in REGISTRY.items() if t is not NODES
    }
    for shard in sorted(view.shards, key=lambda s: s.id):
        for name, columns in (shard.tables or {}).items():
            if name == NODES.full_name:
                continue
            known = tables.setdefault(name, {})
            for column in columns:
                if column.name not in _TAG_NAMES:
                    known.setdefault(column.name, column.type)
    found = {name: tuple(ColumnType(n, t) for n, t in columns.items()) for name, columns in sorted(tables.items())}
    return Catalogue(found, _version(found))


def _version(tables: Mapping[str, tuple[ColumnType, ...]]) -> str:
    digest = hashlib.sha256()
    for name, columns in tables.items():
        digest.update(f"{name}({','.join(f'{c.name} {c.type}' for c in columns)})\n".encode())
    return digest.hexdigest()[:16]
