"""Route `gather`: rows travel, filtered and with the columns that can be needed; the statement runs at the gateway.

It is the route that is always right; every other one is a saving over it.
"""

from __future__ import annotations

from sqlglot import exp

from muster.errors import NotDistributable
from muster.sql import information
from muster.sql.builder import Builder, identifier, relation
from muster.sql.plan import Route
from muster.sql.pushdown import mentioned_columns, pushed_conditions, same_everywhere
from muster.sql.scopes import enclosing_select, fed_tables, sources, table_key
from muster.sql.types import round_trips

WHY_NOT = "why it was not pushed"
"""Key in the `meta` of a SELECT."""


def gather_all(tree: exp.Query, builder: Builder) -> None:
    """Replace, in place, every table of the job that is still in the tree by a fragment of its rows."""
    replacements = []
    for table in list(fed_tables(tree)):
        key = table_key(table)
        if builder.binder.is_gateways(key):
            own = exp.Table(this=identifier(information.public(key)), alias=_alias(table))
            replacements.append((table, own))
        else:
            select = enclosing_select(table)
            reason = str(select.meta[WHY_NOT]) if select is not None and WHY_NOT in select.meta else None
            replacements.append((table, _gather(tree, table, key, builder, reason)))
    for table, made in replacements:
        for name in ("joins", "pivots", "sample"):
            if table.args.get(name):
                made.set(name, table.args[name])
        table.replace(made)


def _gather(tree: exp.Query, table: exp.Table, key: str, builder: Builder, reason: str | None) -> exp.Table:
    types = {c.name: c for c in builder.binder.columns(key)}
    names = list(types)
    wanted = mentioned_columns(tree, table, names) or [names[0]]
    pushed = pushed_conditions(table, names, _others(table, builder))
    if not builder.pushdown:
        pushed = same_everywhere(pushed, types)
        reason = builder.why_not
    for name in wanted:
        if not round_trips(types[name].type):
            raise NotDistributable(
                f"The column {name} of {key} has the type {types[name].type}, which cannot travel from the probes.",
                hint="Leave the column out, or aggregate per _rank over a cast of it.",
            )
    query = exp.select(*[exp.Column(this=identifier(n)) for n in wanted]).from_(
        exp.Table(this=table.this.copy(), db=table.args["db"].copy())
    )
    if pushed:
        query = query.where(*[c.copy() for c in pushed])
    fragment = builder.fragment(
        (key,),
        query,
        [types[n] for n in wanted],
        Route.GATHER,
        tagged=pushed,
        pushed_filter=pushed,
        pushed_columns=wanted if len(wanted) < len(names) else (),
        reason=reason,
    )
    made = relation(fragment, table.alias_or_name)
    made.set("alias", _alias(table))
    return made


def _alias(table: exp.Table) -> exp.TableAlias:
    alias = table.args.get("alias")
    return alias.copy() if isinstance(alias, exp.TableAlias) else exp.TableAlias(this=table.this.copy())


def _others(table: exp.Table, builder: Builder) -> dict[str, set[str] | None]:
    """Columns of the relations beside a table in its FROM; None where they are not a table's."""
    select = enclosing_select(table)
    others: dict[str, set[str] | None] = {}
    for source in sources(select) if select is not None else []:
        if source.node is table:
            continue
        others[source.alias] = builder.names_of(source)
    return others
