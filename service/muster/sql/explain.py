"""A plan for people and for programs: waves, fragments with their routes and SQL, and the merge statements."""

from __future__ import annotations

from typing import Any

from muster.sql.plan import Fragment, Merge, Plan, Route, Scalar

_ROUTES = {
    Route.LOCAL: "each shard answers for its ranks, the gateway concatenates",
    Route.PARTIAL: "shards aggregate, the gateway finishes",
    Route.TOPK: "shards send their first rows, the gateway orders and cuts again",
    Route.GATHER: "rows travel, the gateway does the rest",
}


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as JSON members."""
    return {
        "waves": [
            {"fragments": [_fragment(f) for f in wave.fragments], "scalars": [_scalar(s) for s in wave.scalars]}
            for wave in plan.waves
        ],
        "statements": [_merge(m) for m in plan.merges],
        "round_trips": sum(1 for wave in plan.waves if wave.fragments),
    }


def tree(plan: Plan) -> str:
    """The plan as an indented text."""
    trips = sum(1 for wave in plan.waves if wave.fragments)
    lines = [f"{trips} round trip{'' if trips == 1 else 's'}, {len(plan.fragments)} fragments"]
    for number, wave in enumerate(plan.waves, 1):
        lines.append(f"├─ wave {number}")
        for fragment in wave.fragments:
            lines += _fragment_lines(fragment)
        for scalar in wave.scalars:
            lines.append(f"│  ├─ ${scalar.id}: {scalar.type}")
            lines.append(f"│  │     {scalar.sql}")
    for merge in plan.merges:
        columns = ", ".join(f"{c.name} {c.type} ({c.exactness})" for c in merge.columns)
        lines.append(f"└─ {merge.statement}: {columns}")
        lines.append(f"      {merge.sql}")
    return "\n".join(lines)


def _fragment_lines(fragment: Fragment) -> list[str]:
    lines = [f"│  ├─ {fragment.id}: {fragment.route} of {', '.join(fragment.tables)} ({_ROUTES[fragment.route]})"]
    if fragment.pushed_filter:
        lines.append(f"│  │     filter: {fragment.pushed_filter}")
    if fragment.pushed_columns:
        lines.append(f"│  │     columns: {', '.join(fragment.pushed_columns)}")
    if fragment.pins:
        lines.append(f"│  │     only: {'; '.join(map(str, fragment.pins))}")
    if fragment.reason:
        lines.append(f"│  │     because: {fragment.reason}")
    lines.append(f"│  │     {fragment.sql}")
    return lines


def _fragment(fragment: Fragment) -> dict[str, Any]:
    return {
        "id": fragment.id,
        "tables": list(fragment.tables),
        "route": str(fragment.route),
        "sql": fragment.sql,
        "columns": [{"name": c.name, "type": c.type} for c in fragment.columns],
        "pushed_filter": fragment.pushed_filter,
        "pushed_columns": list(fragment.pushed_columns),
        "ranks": sorted(fragment.ranks) if fragment.ranks is not None else None,
        "pruned_by": [str(p) for p in fragment.pins],
        "scalars": list(fragment.scalars),
        "reason": fragment.reason,
    }


def _scalar(scalar: Scalar) -> dict[str, Any]:
    return {
        "id": scalar.id,
        "type": scalar.type,
        "sql": scalar.sql,
        "fragments": list(scalar.fragments),
        "scalars": list(scalar.scalars),
    }


def _merge(merge: Merge) -> dict[str, Any]:
    return {
        "id": merge.statement,
        "sql": merge.sql,
        "columns": [{"name": c.name, "type": c.type, "exactness": str(c.exactness)} for c in merge.columns],
        "fragments": list(merge.fragments),
        "scalars": list(merge.scalars),
        "relations": list(merge.relations),
    }
