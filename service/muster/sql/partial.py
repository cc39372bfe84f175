"""Route `partial`: grouping and aggregation start on the shards, the gateway finishes them.

The shards send one row for each of their groups; the gateway groups those again and finishes every aggregate. What is
written around the aggregates (expressions, HAVING, windows over groups, ORDER BY, LIMIT) stays at the gateway, with each
aggregate and each key replaced by a column. `SELECT DISTINCT` is a grouping without aggregates.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from muster.errors import SqlBind
from muster.model import ColumnType
from muster.sql.builder import Builder, column, identifier, relation, standalone
from muster.sql.dialect import write
from muster.sql.placement import Placement, group_keys, is_plain_group, place_source
from muster.sql.plan import Fragment, Route
from muster.sql.pushdown import ranks_of
from muster.sql.scalars import null
from muster.sql.scopes import (
    aggregates,
    clauses,
    conjuncts,
    function_name,
    has_star,
    has_subquery,
    holds_aggregate,
    makes_rows,
    own_nodes,
    sources,
    unaliased,
    whole_call,
    windows,
)
from muster.sql.split import Split, arguments, is_count_star, split
from muster.sql.types import round_trips

_PARTS = frozenset(
    {
        "expressions",
        "from_",
        "where",
        "group",
        "having",
        "qualify",
        "windows",
        "distinct",
        "order",
        "limit",
        "offset",
        "with_",
    }
)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A SELECT taken apart: keys, and aggregates with the way each is split."""

    keys: list[exp.Expr]
    calls: dict[str, Split]  # by their text


def push_partial(select: exp.Select, builder: Builder) -> bool:
    """Replace a SELECT that groups, aggregates or makes distinct by one over a fragment. Returns whether it did."""
    if {k for k, v in select.args.items() if v} - _PARTS or has_subquery(select) or has_star(select) or makes_rows(select):
        return False
    found = sources(select)
    base = place_source(found[0], builder.binder) if len(found) == 1 else None
    if base is None:
        return False
    alone = standalone(select)
    if not isinstance(alone, exp.Select):
        return False
    _strip_alias(alone, found[0].alias)
    try:
        names = builder.describe(alone)
        own = {c.name.lower() for c in _relation_columns(alone, base, builder)}
        parts = _take_apart(alone, own, builder)
        if parts is None or _ambiguous(alone, own):
            return False
        fragment = _fragment(alone, parts, base, builder)
        if fragment is None:
            return False
        made = _finish(alone, parts, own, names, fragment)
        if made is None or [c.type for c in builder.describe(made)] != [c.type for c in names]:
            return False
    except SqlBind:
        return False  # correlated, or the engine does not split what the list says it does
    select.replace(made)
    return True


def _relation_columns(select: exp.Select, base: Placement, builder: Builder) -> tuple[ColumnType, ...]:
    return builder.binder.columns(base.table) if base.depth == 0 else builder.describe(_probe(select, [exp.Star()]))


def _strip_alias(select: exp.Select, alias: str) -> None:
    """Bare column names: one relation is all there is."""
    for node in own_nodes(select, clauses(select)):
        if isinstance(node, exp.Column) and node.table.lower() == alias and not node.args.get("db"):
            node.set("table", None)


def _probe(select: exp.Select, expressions: list[exp.Expr]) -> exp.Select:
    """`SELECT expressions` from the same relation with the same CTEs, without any grouping."""
    made = exp.Select(expressions=[e.copy() for e in expressions])
    for part in ("from_", "with_"):
        if select.args.get(part) is not None:
            made.set(part, select.args[part].copy())
    return made


def _take_apart(select: exp.Select, own: set[str], builder: Builder) -> _Parts | None:
    group, found = select.args.get("group"), aggregates(select)
    distinct = select.args.get("distinct")
    if group is None and not found:
        if distinct is None or distinct.args.get("on") is not None or windows(select):
            return None
        keys = [unaliased(p) for p in select.expressions]
    elif group is None:
        keys = []
    elif not is_plain_group(group):
        return None
    elif group.args.get("all"):
        keys = [unaliased(p) for p in select.expressions if not holds_aggregate(p) and not p.find(exp.Window)]
    else:
        keys = [_meaning(k, select, own) for k in group_keys(select, group)]
    if any(not _is_key(k) for k in keys):
        return None
    calls: dict[str, exp.Expr] = {write(c): c for c in found}
    wanted: list[tuple[str, list[exp.Expr]]] = []
    for text, call in calls.items():
        given = arguments(call)
        if given is None or any(holds_aggregate(a) for a in given):
            return None
        wanted.append((text, given))
    flat = [a for _, given in wanted for a in given]
    types = iter(builder.describe(_probe(select, flat))) if flat else iter(())
    splits: dict[str, Split] = {}
    for text, given in wanted:
        made = split(calls[text], [next(types).type for _ in given])
        if made is None:
            return None
        splits[text] = made
    return _Parts(keys, splits)


def _meaning(key: exp.Expr, select: exp.Select, own: set[str]) -> exp.Expr:
    """A key that is an alias stands for its expression; a column of that name would come first."""
    if isinstance(key, exp.Column) and not key.table and key.name.lower() not in own:
        for projection in select.expressions:
            if isinstance(projection, exp.Alias) and projection.alias.lower() == key.name.lower():
                return unaliased(projection)
    return key


def _is_key(key: exp.Expr) -> bool:
    if isinstance(key, exp.Literal) or holds_aggregate(key):
        return False
    opaque = (exp.Query, exp.Window, exp.Lambda, exp.Comprehension, exp.Star)
    return not any(isinstance(n, opaque) or function_name(n) in ("grouping", "grouping_id", "unnest") for n in key.walk())


def _ambiguous(select: exp.Select, own: set[str]) -> bool:
    """Whether a later clause uses a name that is a column of the relation and also an alias of something else."""
    shadows = {
        p.alias.lower()
        for p in select.expressions
        if isinstance(p, exp.Alias)
        and p.alias.lower() in own
        and not (isinstance(p.this, exp.Column) and p.this.name.lower() == p.alias.lower())
    }
    if not shadows:
        return False
    later = [select.args[k] for k in ("having", "qualify", "order", "group") if select.args.get(k) is not None]
    return any(isinstance(n, exp.Column) and n.name.lower() in shadows for n in own_nodes(select, later))


def _fragment(select: exp.Select, parts: _Parts, base: Placement, builder: Builder) -> Fragment | None:
    query = _probe(select, [])
    if select.args.get("where") is not None:
        query.set("where", select.args["where"].copy())
    outputs = [(f"k{i}", key) for i, key in enumerate(parts.keys)]
    outputs += [(f"s{i}", made.shard) for i, made in enumerate(parts.calls.values())]
    query.set("expressions", [exp.Alias(this=e.copy(), alias=identifier(n)) for n, e in outputs])
    if parts.keys:
        query.set("group", exp.Group(expressions=[k.copy() for k in parts.keys]))
    text = write(builder.self_contained(query))
    bound = builder.binder.describe(text)
    stored, schema = builder.binder.over_arrow(text)
    splits: list[Split | None] = [None] * len(parts.keys) + list(parts.calls.values())
    columns = []
    for i, made in enumerate(splits):
        is_state = made is not None and made.is_state
        kind = stored[i].type if is_state else bound[i].type
        if not round_trips(kind):
            return None
        if made is not None and is_state:
            restored = write(made.restored(null(kind)))
            if not builder.binder.state_fits(restored, schema.field(i).type):
                return None
        columns.append(ColumnType(outputs[i][0], kind))
    where = select.args.get("where")
    conditions = conjuncts(where.this if where is not None else None)
    return builder.fragment(
        base.table,
        query,
        columns,
        Route.PARTIAL,
        ranks=ranks_of(conditions) if base.depth == 0 else None,
        pushed_filter=conditions,
        pushed_columns=[write(k) for k in parts.keys],
    )


def _finish(
    select: exp.Select, parts: _Parts, own: set[str], names: tuple[ColumnType, ...], fragment: Fragment
) -> exp.Select | None:
    """The SELECT over the finished groups, or None where it still names a column that is neither key nor aggregate."""
    inner = exp.Select(
        expressions=[exp.Alias(this=column(f"k{i}", "q"), alias=identifier(f"k:{i}")) for i in range(len(parts.keys))]
        + [
            exp.Alias(this=made.gateway(column(f"s{i}", "q")), alias=identifier(f"a:{i}"))
            for i, made in enumerate(parts.calls.values())
        ]
    ).from_(relation(fragment, "q"))
    if parts.keys:
        inner.set("group", exp.Group(expressions=[column(f"k{i}", "q") for i in range(len(parts.keys))]))
    elif not parts.calls:
        return None
    made = select.copy()
    made.set("with_", None)
    for part in ("where", "group"):
        made.set(part, None)
    projections = [
        p if isinstance(p, exp.Alias) else exp.Alias(this=p, alias=identifier(n.name))
        for p, n in zip(made.expressions, names, strict=True)
    ]
    made.set("expressions", projections)
    places = {write(k): f"k:{i}" for i, k in enumerate(parts.keys)}
    calls = {text: f"a:{i}" for i, text in enumerate(parts.calls)}
    _substitute(made, places, calls)
    aliases = {p.alias.lower() for p in projections}
    for node in own_nodes(made, clauses(made)):
        if isinstance(node, exp.Column) and node.table != "p" and (node.table or node.name.lower() not in aliases - own):
            return None
        if is_count_star(node):
            return None
    having = made.args.get("having")
    made.set("having", None)
    made.set("from_", exp.From(this=exp.Subquery(this=inner, alias=exp.TableAlias(this=identifier("p")))))
    if having is not None:
        made.set("where", exp.Where(this=having.this))
    return made


def _substitute(select: exp.Select, keys: dict[str, str], calls: dict[str, str]) -> None:
    """Put a column for every key and every aggregate, the outermost first."""
    stack: list[exp.Expr] = list(reversed(clauses(select)))
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Ordered) and isinstance(node.this, exp.Literal):
            continue  # ORDER BY 1
        if not isinstance(node, exp.Alias | exp.Literal | exp.Identifier):
            text = write(node)
            if text in calls and node is whole_call(node) and not _is_windowed(node):
                node.replace(column(calls[text], "p"))
                continue
            if text in keys:
                node.replace(column(keys[text], "p"))
                continue
        stack.extend(node.iter_expressions())


def _is_windowed(node: exp.Expr) -> bool:
    return isinstance(node.parent, exp.Window) and node.parent.this is node
