"""`information_schema` of a job. The engine has a schema of this name and lets nobody add to it, so ours has another name
while a statement is planned."""

from __future__ import annotations

from sqlglot import exp

SCHEMA = "information_schema"
PLANNED = "job information"
"""Its name in planned trees; no user can reach it but through `rename`, since guarded tables are known by their names."""


def rename(tree: exp.Expr) -> bool:
    """Rename `information_schema` in place, in FROM and in qualified columns. Returns whether it was there."""
    found = False
    for node in tree.find_all(exp.Table, exp.Column):
        if node.args.get("db") is not None and node.args["db"].name.lower() == SCHEMA:
            node.set("db", exp.Identifier(this=PLANNED, quoted=True))
            found = True
    return found


def planned(name: str) -> str:
    """`schema.table` as it is called in planned trees."""
    schema, _, table = name.partition(".")
    return f"{PLANNED}.{table}" if schema == SCHEMA else name


def public(name: str) -> str:
    """`schema.table` as people call it."""
    schema, _, table = name.partition(".")
    return f"{SCHEMA}.{table}" if schema == PLANNED else name
