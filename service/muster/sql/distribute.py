"""Choosing the route of every part of a statement, from the outside in."""

from __future__ import annotations

from sqlglot import exp

from muster.sql.builder import Builder
from muster.sql.gather import gather_all


def distribute(tree: exp.Query, builder: Builder) -> exp.Query:
    """Replace what the shards can do by fragments. Gives the tree for the gateway (the given one is changed)."""
    holder = exp.Subquery(this=tree)
    gather_all(tree, builder)
    result: exp.Query = holder.this
    return result
