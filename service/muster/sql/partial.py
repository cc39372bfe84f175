"""Route `partial`: grouping and aggregation start on the shards, the gateway finishes them.

The shards send one row for each of their groups; the gateway groups those again and finishes every aggregate. What is
written around the aggregates (expressions, HAVING, windows over groups, ORDER BY, LIMIT) stays at the gateway, with each
aggregate and each key replaced by a column. `SELECT DISTINCT` is a grouping without aggregates. Grouping sets are the
gateway's (`grouping`), and so are aggregates over distinct values (`regroup`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from muster.errors import SqlBind
from muster.model import ColumnType
from muster.sql.builder import Builder, column, identifier, relation, standalone
from muster.sql.dialect import write
from muster.sql.grouping import Grouping, grouping_of
from muster.sql.placement import PlacedFrom, place_from
from muster.sql.plan import Fragment, Route
from muster.sql.regroup import Values, is_over_distinct, regrouped
from muster.sql.scalars import null
from muster.sql.scopes import (
    aggregates,
    clauses,
    conjuncts,
    has_star,
    has_subquery,
    holds_aggregate,
    makes_rows,
    own_nodes,
    unaliased,
    whole_call,
    windows,
)
from muster.sql.split import Split, arguments, is_count_star, split
from muster.sql.types import round_trips

_PARTS = frozenset(
    """expressions from_ joins where group having qualify windows distinct order limit offset with_""".split()  # noqa: SIM905
)
_CORRELATED = "it is correlated with the query around it"


@dataclass(frozen=True, slots=True)
class _Parts:
    """A SELECT taken apart: its keys, and aggregates by their text: those that are split, with the columns that each needs,
    and those over distinct values, as they run at the gateway."""

    grouping: Grouping
    splits: dict[str, tuple[Split, range]]
    distinct: dict[str, exp.Expr]
    values: Values

    @property
    def finishes(self) -> dict[str, exp.Expr]:
        """How each aggregate is finished over the fragment `q`."""
        made = {text: one.gateway([column(f"s{i}", "q") for i in places]) for text, (one, places) in self.splits.items()}
        return made | self.distinct


def push_partial(select: exp.Select, builder: Builder) -> str | None:
    """Replace a SELECT that groups, aggregates or makes distinct by one over a fragment. Returns why not, or None."""
    if {k for k, v in select.args.items() if v} - _PARTS or has_star(select) or makes_rows(select):
        return "it has a form that is not split"
    if has_subquery(select):
        return "it holds a subquery that looks at all ranks"
    base = place_from(select, builder.binder)
    if isinstance(base, str):
        return base
    alone = standalone(select)
    if not isinstance(alone, exp.Select):
        return "it has a form that is not split"
    if not base.joined:
        _strip_alias(alone, next(iter(base.owners)))
    try:
        names = builder.describe(alone)
        own = {c.name.lower() for c in builder.describe(_probe(alone, [exp.Star()]))}
        parts = _take_apart(alone, own, builder)
        if isinstance(parts, str):
            return parts
        if _ambiguous(alone, own):
            return "a name in it means a column and also an alias of something else"
        fragment = _fragment(alone, parts, base, builder)
        if isinstance(fragment, str):
            return fragment
        made = _finish(alone, parts, own, names, fragment)
        if made is None or [c.type for c in builder.describe(made)] != [c.type for c in names]:
            return "something in it is neither a key nor an aggregate"
    except SqlBind:
        return _CORRELATED  # or the engine does not split what the list says it does
    select.replace(made)
    return None


def _strip_alias(select: exp.Select, alias: str) -> None:
    """Bare column names: one relation is all there is."""
    for node in own_nodes(select, clauses(select)):
        if isinstance(node, exp.Column) and node.table.lower() == alias and not node.args.get("db"):
            node.set("table", None)


def _probe(select: exp.Select, expressions: list[exp.Expr]) -> exp.Select:
    """`SELECT expressions` from the same relations with the same CTEs, without any grouping."""
    made = exp.Select(expressions=[e.copy() for e in expressions])
    for part in ("from_", "with_"):
        if select.args.get(part) is not None:
            made.set(part, select.args[part].copy())
    if select.args.get("joins"):
        made.set("joins", [j.copy() for j in select.args["joins"]])
    return made


def _take_apart(select: exp.Select, own: set[str], builder: Builder) -> _Parts | str:
    found = aggregates(select)
    grouping: Grouping | str = grouping_of(select, own)
    if isinstance(grouping, str):
        return grouping
    if select.args.get("group") is None and not found:
        distinct = select.args.get("distinct")
        if distinct is None:
            return "it asks for rows as they are"
        if distinct.args.get("on") is not None or windows(select):
            return "its DISTINCT is not split"
        grouping = Grouping(tuple({write(unaliased(p)): unaliased(p) for p in select.expressions}.values()))
    calls: dict[str, exp.Expr] = {write(c): c for c in found}
    values, over_distinct = Values(), {}
    for text, call in calls.items():
        if is_over_distinct(call):
            made = regrouped(call, values, "q")
            if made is None:
                return f"{text} cannot be split"
            over_distinct[text] = made
    splits = _splits({t: c for t, c in calls.items() if t not in over_distinct}, select, builder)
    if isinstance(splits, str):
        return splits
    if over_distinct and any(one.is_large for one, _ in splits.values()):
        return "its sketches would be sent once for every distinct value"
    return _Parts(grouping, splits, over_distinct, values)


def _splits(calls: dict[str, exp.Expr], select: exp.Select, builder: Builder) -> dict[str, tuple[Split, range]] | str:
    wanted: dict[str, list[exp.Expr]] = {}
    for text, call in calls.items():
        given = arguments(call)
        if given is None or any(holds_aggregate(a) for a in given):
            return f"{text} cannot be split"
        wanted[text] = given
    flat = [a for given in wanted.values() for a in given]
    types = iter(builder.describe(_probe(select, flat))) if flat else iter(())
    splits: dict[str, tuple[Split, range]] = {}
    count = 0
    for text, given in wanted.items():
        made = split(calls[text], [next(types).type for _ in given], states=builder.states)
        if made is None:
            return f"{text} cannot be split" + (f": {builder.why_not}" if not builder.states else "")
        splits[text] = (made, range(count, count + len(made.shards)))
        count += len(made.shards)
    return splits


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


def _fragment(select: exp.Select, parts: _Parts, base: PlacedFrom, builder: Builder) -> Fragment | str:
    where = select.args.get("where")
    keys = [*parts.grouping.keys, *parts.values.found.values()]
    outputs: list[tuple[str, exp.Expr, Split | None]] = [(f"k{i}", key, None) for i, key in enumerate(parts.grouping.keys)]
    outputs += [(f"v{i}", value, None) for i, value in enumerate(parts.values.found.values())]
    for made, places in parts.splits.values():
        outputs += [(f"s{i}", shard, made) for i, shard in zip(places, made.shards, strict=True)]
    query = _probe(select, [exp.Alias(this=e, alias=identifier(n)) for n, e, _ in outputs])
    if where is not None:
        query.set("where", where.copy())
    if keys:
        query.set("group", exp.Group(expressions=[k.copy() for k in keys]))
    text = write(builder.self_contained(query))
    bound = builder.binder.describe(text)
    stored, schema = builder.binder.over_arrow(text)
    columns = []
    for i, (name, _, one) in enumerate(outputs):
        is_state = one is not None and one.is_state
        kind = stored[i].type if is_state else bound[i].type
        if not round_trips(kind):
            return f"a column of type {kind} cannot travel"
        if one is not None and is_state:
            restored = write(one.restored(null(kind)))
            if not builder.binder.state_fits(restored, schema.field(i).type):
                return f"the state of {one.function} is not what this engine says it is"
        columns.append(ColumnType(name, kind))
    conditions = conjuncts(where.this if where is not None else None)
    return builder.fragment(
        base.tables,
        query,
        columns,
        Route.PARTIAL,
        tagged=conditions if base.depth == 0 else (),
        pushed_filter=conditions,
        pushed_columns=[write(k) for k in keys],
    )


def _finish(
    select: exp.Select, parts: _Parts, own: set[str], names: tuple[ColumnType, ...], fragment: Fragment
) -> exp.Select | None:
    """The SELECT over the finished groups, or None where it still names a column that is neither key nor aggregate."""
    keys, finishes = parts.grouping.keys, parts.finishes

    def key(i: int) -> exp.Expr:
        return column(f"k{i}", "q")

    marks = parts.grouping.calls or {}
    inner = exp.Select(
        expressions=[exp.Alias(this=key(i), alias=identifier(f"k:{i}")) for i in range(len(keys))]
        + [exp.Alias(this=made, alias=identifier(f"a:{i}")) for i, made in enumerate(finishes.values())]
        + [
            exp.Alias(this=parts.grouping.call_over(call, key), alias=identifier(f"g:{i}"))
            for i, call in enumerate(marks.values())
        ]
    ).from_(relation(fragment, "q"))
    group = parts.grouping.over(key)
    if group is not None:
        inner.set("group", group)
    elif not finishes:
        return None
    made = select.copy()
    for part in ("with_", "where", "group", "joins"):
        made.set(part, None)
    projections = [
        p if isinstance(p, exp.Alias) else exp.Alias(this=p, alias=identifier(n.name))
        for p, n in zip(made.expressions, names, strict=True)
    ]
    made.set("expressions", projections)
    places = {write(k): f"k:{i}" for i, k in enumerate(keys)}
    calls = {text: f"a:{i}" for i, text in enumerate(finishes)} | {text: f"g:{i}" for i, text in enumerate(marks)}
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
