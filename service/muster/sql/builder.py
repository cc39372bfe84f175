"""What is collected while a statement is planned: its fragments and scalars, each under the hash of its content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import exp

from muster.errors import SqlBind
from muster.model import ColumnType
from muster.sql import information
from muster.sql.bind import Binder
from muster.sql.dialect import write
from muster.sql.placement import OWNER
from muster.sql.plan import Catalogue, Fragment, Pin, Route, Scalar, Wave
from muster.sql.prune import pins_of
from muster.sql.scalars import null, placeholders, replace
from muster.sql.scopes import Source, cte_of, drop_unused, fed_tables, table_key
from muster.tables import GATEWAY_TABLES, REGISTRY


class Builder:
    """Fragments and scalars of one statement. Equal content gets the same id, here and in other statements."""

    def __init__(self, binder: Binder, catalogue: Catalogue, *, use_global: bool) -> None:
        self.binder = binder
        self.states = catalogue.states
        self.pushdown = catalogue.pushdown
        self.why_not = catalogue.why_not
        self.use_global = use_global
        self.fragments: dict[str, Fragment] = {}
        self.scalars: dict[str, Scalar] = {}

    def fragment(
        self,
        tables: tuple[str, ...],
        tree: exp.Expr,
        columns: Sequence[ColumnType],
        route: Route,
        *,
        tagged: Sequence[exp.Expr] = (),
        pushed_filter: Sequence[exp.Expr] = (),
        pushed_columns: Sequence[str] = (),
        reason: str | None = None,
    ) -> Fragment:
        """Add a fragment: `tree` over `tables`, restricted to the coordinator where the statement is.

        `tagged` are conditions that all of its rows satisfy and in which a tag's name means the tag: ranks are pruned by
        them.
        """
        pins = pins_of(tagged)
        if not self.use_global:
            tree = restricted(tree, tables)
            pins += (Pin(OWNER, frozenset({0})),)
        drop_unused(tree)
        sql = write(tree)
        types = tuple(columns)
        key = "\0".join([sql, route, ",".join(f"{c.name} {c.type}" for c in types), *map(str, pins)])
        made = Fragment(
            id=fragment_id(key),
            tables=tables,
            sql=sql,
            columns=types,
            route=route,
            scalars=placeholders(tree),
            pins=pins,
            pushed_filter=" AND ".join(write(c) for c in pushed_filter) or None,
            pushed_columns=tuple(pushed_columns),
            reason=reason,
        )
        return self.fragments.setdefault(made.id, made)

    def scalar(self, tree: exp.Expr, type_name: str) -> Scalar:
        """Add a scalar: `tree` gives one row of one column over fragments that are already added."""
        drop_unused(tree)
        sql = write(tree)
        made = Scalar(
            id=f"s_{_hash(sql + type_name)}",
            sql=sql,
            type=type_name,
            fragments=self.used(tree),
            scalars=placeholders(tree),
            relations=gateway_relations(tree),
        )
        return self.scalars.setdefault(made.id, made)

    def used(self, tree: exp.Expr) -> tuple[str, ...]:
        """Ids of the fragments that a tree reads."""
        return tuple(sorted({t.name for t in tree.find_all(exp.Table) if t.name in self.fragments}))

    def describe(self, tree: exp.Expr) -> tuple[ColumnType, ...]:
        """Output columns of a tree over tables, fragments and scalars. Raises SqlBind."""
        return self.binder.describe(write(self.self_contained(tree)))

    def stands_alone(self, query: exp.Expr) -> bool:
        """Whether a query means the same without the queries around it: it is not correlated."""
        if not isinstance(query, exp.Query):
            return False
        try:
            self.describe(standalone(query))
        except SqlBind:
            return False
        return True

    def names_of(self, source: Source) -> set[str] | None:
        """The columns of a relation in FROM, in lower case; None where they cannot be told."""
        node = source.node
        if isinstance(node, exp.Table) and node.db:
            return {c.name.lower() for c in self.binder.columns(table_key(node))}
        query = exp.select("*").from_(node.copy())
        try:
            return {c.name.lower() for c in self.describe(_in_context(query, node))}
        except SqlBind:
            return None

    def self_contained(self, tree: exp.Expr) -> exp.Expr:
        """A copy of a tree with an empty typed relation for each fragment and a typed NULL for each scalar."""
        copy = tree.copy()
        nulls: Mapping[str, exp.Expr] = {s.id: null(s.type) for s in self.scalars.values()}
        replace(copy, nulls)
        names = [t.name for t in copy.find_all(exp.Table) if not t.db]
        empty: dict[str, Sequence[ColumnType]] = {
            n: self.fragments[n].columns for n in dict.fromkeys(names) if n in self.fragments
        }
        for name in gateway_relations(copy):
            empty[name] = self.binder.columns(information.planned(name))
        if not empty:
            return copy
        outer = exp.select("*").from_(exp.Subquery(this=copy, alias=exp.TableAlias(this=exp.to_identifier("q"))))
        outer.set(
            "with_",
            exp.With(expressions=[_empty_relation(name, columns) for name, columns in empty.items()]),
        )
        return outer

    def waves(self) -> tuple[Wave, ...]:
        """Fragments and scalars by the earliest wave in which they can run."""
        fragment_wave: dict[str, int] = {}
        scalar_wave: dict[str, int] = {}

        def of_scalar(name: str) -> int:
            if name not in scalar_wave:
                scalar = self.scalars[name]
                needs = [of_fragment(f) for f in scalar.fragments]
                needs += [of_scalar(s) + 1 for s in scalar.scalars]
                scalar_wave[name] = max(needs, default=0)
            return scalar_wave[name]

        def of_fragment(name: str) -> int:
            if name not in fragment_wave:
                needs = [of_scalar(s) + 1 for s in self.fragments[name].scalars]
                fragment_wave[name] = max(needs, default=0)
            return fragment_wave[name]

        for name in self.fragments:
            of_fragment(name)
        for name in self.scalars:
            of_scalar(name)
        count = 1 + max([*fragment_wave.values(), *scalar_wave.values()], default=-1)
        return tuple(
            Wave(
                tuple(self.fragments[n] for n, w in sorted(fragment_wave.items()) if w == i),
                tuple(self.scalars[n] for n, w in sorted(scalar_wave.items()) if w == i),
            )
            for i in range(count)
        )


def relation(fragment: Fragment, alias: str) -> exp.Table:
    """A fragment in FROM."""
    return exp.Table(this=exp.to_identifier(fragment.id), alias=exp.TableAlias(this=identifier(alias)))


def identifier(name: str) -> exp.Identifier:
    """A name, always in quotes: no word of it can be taken for a keyword."""
    return exp.Identifier(this=name, quoted=True)


def column(name: str, table: str | None = None) -> exp.Column:
    """A column by its name, and optionally its relation."""
    return exp.Column(this=identifier(name), table=identifier(table) if table else None)


def restricted(tree: exp.Expr, tables: tuple[str, ...]) -> exp.Expr:
    """A copy of a tree that sees only what the coordinator holds: rank 0, or the node of rank 0 for tables of a node."""
    copy = tree.copy()
    for node in list(fed_tables(copy)):
        if table_key(node) in tables:
            known = REGISTRY.get(table_key(node))
            condition = exp.EQ(
                this=column("_node_rank" if known is not None and known.scope == "node" else OWNER),
                expression=exp.Literal.number(0),
            )
            alias = node.args.get("alias")
            plain = exp.Table(this=node.this.copy(), db=node.args["db"].copy())
            inner = exp.select("*").from_(plain).where(condition)
            node.replace(exp.Subquery(this=inner, alias=alias.copy() if alias is not None else None))
    return copy


def gateway_relations(tree: exp.Expr) -> tuple[str, ...]:
    """Those relations of the gateway itself that a tree reads."""
    return tuple(sorted({t.name for t in tree.find_all(exp.Table) if t.name in GATEWAY_TABLES and not t.db}))


def standalone(query: exp.Query) -> exp.Query:
    """A copy of a query with the CTEs that it uses from around it. What is correlated does not bind then."""
    needed: dict[str, exp.CTE] = {}
    pending: list[exp.Expr] = [query]
    while pending:
        for table in pending.pop().find_all(exp.Table):
            if table.db or not isinstance(table.this, exp.Identifier):
                continue
            cte = cte_of(table)
            if cte is None or _within(cte, query) or id(cte) in {id(c) for c in needed.values()}:
                continue
            needed[cte.alias.lower()] = cte
            pending.append(cte)
    copy = query.copy()
    if not needed:
        return copy
    ordered = sorted(needed.values(), key=_position)
    own = copy.args.get("with_")
    recursive = any(c.parent is not None and c.parent.args.get("recursive") for c in ordered)
    copy.set(
        "with_",
        exp.With(
            expressions=[c.copy() for c in ordered] + (list(own.expressions) if own is not None else []),
            recursive=recursive or bool(own is not None and own.args.get("recursive")),
        ),
    )
    return copy


def _in_context(query: exp.Query, node: exp.Expr) -> exp.Query:
    """`query`, which reads a copy of `node`, with the CTEs that `node` sees."""
    probe = exp.Subquery(this=query)
    probe.parent = node.parent
    try:
        return standalone(query)
    finally:
        probe.parent = None


def _position(cte: exp.CTE) -> tuple[int, ...]:
    """Where a CTE stands: outer lists before inner ones, earlier before later."""
    path: list[int] = []
    node: Any = cte
    while node is not None:
        if isinstance(node, exp.CTE) and node.parent is not None:
            path.append(node.parent.expressions.index(node))
        node = node.parent
    return tuple(reversed(path))


def _within(node: exp.Expr, holder: exp.Expr) -> bool:
    current: exp.Expr | None = node
    while current is not None:
        if current is holder:
            return True
        current = current.parent
    return False


def _empty_relation(name: str, columns: Sequence[ColumnType]) -> exp.CTE:
    query = exp.select(*[exp.Alias(this=null(c.type), alias=identifier(c.name)) for c in columns]).where(exp.false())
    return exp.CTE(this=query, alias=exp.TableAlias(this=identifier(name)))


def fragment_id(content: str) -> str:
    """The id of a fragment with this content. No other word of a statement is spelled like one."""
    return f"f_{_hash(content)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
