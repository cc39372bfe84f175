"""How far SQL itself determines each output column: `exact`, `float`, `approx` or `arbitrary`.

Conservative: a column is `exact` only where it is certain. Labels travel from tables through expressions and queries, the
worst wins. A filter, key, order or limit on an inexact value marks the rows, and with them every column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from muster.sql.bind import Binder
from muster.sql.dialect import write
from muster.sql.functions import functions, words
from muster.sql.placement import group_keys
from muster.sql.plan import Exactness
from muster.sql.scopes import (
    aggregates,
    cte_of,
    function_name,
    holds_aggregate,
    is_bare_star,
    output_name,
    sources,
    table_key,
    unaliased,
    whole_call,
)
from muster.sql.types import is_exact_number, is_whole_number

_ORDER = list(Exactness)
_ANY_ORDER = words("""count count_if countif min max bool_and bool_or bit_and bit_or bit_xor median quantile quantile_cont
    quantile_disc percentile_cont percentile_disc mad histogram histogram_exact regr_count""")
_SUMS = words("sum avg mean")
_PICKS = words("min max bool_and bool_or bit_and bit_or bit_xor")
_SKETCHES = words("approx_count_distinct approx_quantile approx_top_k")
_FLOATS = words("""stddev stddev_samp stddev_pop variance var_samp var_pop sem skewness kurtosis kurtosis_pop corr covar_pop
    covar_samp regr_slope regr_intercept regr_r2 regr_avgx regr_avgy regr_sxx regr_syy regr_sxy entropy product favg fsum
    sumkahan geomean geometric_mean wavg weighted_avg""")
_RANKINGS = words("rank dense_rank rank_dense percent_rank cume_dist")
_CHAINS = (exp.And, exp.Or, exp.Add, exp.Mul, exp.DPipe)
_NUMBER_SAFE = (exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod, exp.Neg, exp.Paren, exp.Case, exp.If, exp.Column, exp.Alias)


@dataclass(frozen=True, slots=True)
class Label:
    """Of one column: how exact it is, whether sums over it are (integers and decimals), and averages (integers)."""

    exactness: Exactness = Exactness.EXACT
    summable: bool = False
    whole: bool = False

    def worse(self, exactness: Exactness) -> Label:
        """The same label, at most as exact as that."""
        return Label(worst([self.exactness, exactness]), self.summable, self.whole)


Keys = tuple[frozenset[str], ...]
"""Each set alone tells the rows apart; none is known where there is no set."""


@dataclass(frozen=True, slots=True)
class _Relation:
    """Output columns in order, and the label of the set of rows. `keys`: sets of columns that tell the rows apart."""

    columns: tuple[tuple[str, Label], ...]
    rows: Exactness = Exactness.EXACT
    keys: Keys = ()

    def find(self, name: str) -> Label | None:
        found = [label for n, label in self.columns if n.lower() == name]
        return _worst_label(found) if found else None


Env = tuple[Mapping[str, _Relation], ...]  # innermost first


def exactness(tree: exp.Query, binder: Binder, count: int, *, states: bool = True) -> list[Exactness]:
    """The label of each of the `count` output columns of a canonical tree. `states`: see `split`; without them an average
    is a quotient of two sums."""
    relation = _Labeller(binder, states=states).query(tree, ())
    labels = [label.exactness for _, label in relation.columns]
    if len(labels) != count:
        labels = [worst(labels)] * count
    return [worst([label, relation.rows]) for label in labels]


def worst(labels: Iterable[Exactness]) -> Exactness:
    """The least exact of some labels."""
    return max(labels, key=_ORDER.index, default=Exactness.EXACT)


def _worst_label(labels: Iterable[Label]) -> Label:
    found = list(labels)
    return Label(worst(x.exactness for x in found), all(x.summable for x in found), all(x.whole for x in found))


class _Labeller:
    def __init__(self, binder: Binder, *, states: bool) -> None:
        self._binder = binder
        self._states = states
        self._ctes: dict[int, _Relation] = {}

    def query(self, query: exp.Expr, outer: Env) -> _Relation:
        if isinstance(query, exp.Select):
            return self._select(query, outer)
        if isinstance(query, exp.SetOperation):
            return self._set_operation(query, outer)
        if isinstance(query, exp.Subquery):
            inner = self.query(query.this, outer)
            return self._limited(query, inner, [], outer) if query.args.get("limit") else inner
        return _Relation(())

    def _set_operation(self, query: exp.SetOperation, outer: Env) -> _Relation:
        left, right = self.query(query.this, outer), self.query(query.expression, outer)
        rows = worst([left.rows, right.rows])
        if len(left.columns) != len(right.columns) or query.args.get("by_name"):
            everything = _worst_label(label for _, label in (*left.columns, *right.columns))
            names = dict.fromkeys(n for n, _ in (*left.columns, *right.columns))
            columns = tuple((n, everything) for n in names)
        else:
            columns = tuple((n, _worst_label([a, b])) for (n, a), (_, b) in zip(left.columns, right.columns, strict=True))
        if query.args.get("distinct") or isinstance(query, exp.Except | exp.Intersect):
            rows = worst([rows, *(label.exactness for _, label in columns)])
        relation = _Relation(columns, rows)
        return self._limited(query, relation, [exp.column(n) for n, _ in columns], outer)

    def _select(self, select: exp.Select, outer: Env) -> _Relation:
        relations: dict[str, _Relation] = {}
        rows = Exactness.EXACT
        for source in sources(select):
            relation = self._source(source.node, (relations, *outer))
            relations[source.alias or f"#{len(relations)}"] = relation
            rows = worst([rows, relation.rows])
            if source.join is not None and source.join.args.get("on") is not None:
                rows = worst([rows, self._label(source.join.args["on"], (relations, *outer), select).exactness])
            for name in (source.join.args.get("using") or []) if source.join is not None else []:
                labels = [r.find(name.name.lower()) for r in relations.values()]
                rows = worst([rows, *[x.exactness for x in labels if x is not None]])
        env: Env = (relations, *outer)
        for clause in ("where", "having", "qualify"):
            if select.args.get(clause) is not None:
                rows = worst([rows, self._label(select.args[clause].this, env, select).exactness])
        group = select.args.get("group")
        keys: list[exp.Expr] = []
        if group is not None:
            keys = [unaliased(p) for p in select.expressions if not holds_aggregate(p)] if group.args.get("all") else []
            keys += group_keys(select, group)
            rows = worst([rows, *[self._label(k, env, select).exactness for k in [*keys, *_grouping_parts(group)]]])
        columns = self._outputs(select, env)
        distinct = select.args.get("distinct")
        if distinct is not None:
            rows = worst([rows, *(label.exactness for _, label in columns)])
            if distinct.args.get("on") is not None:
                rows = Exactness.ARBITRARY
        if distinct is not None:
            unique: Keys = (frozenset(n.lower() for n, _ in columns),)
        elif group is not None:
            unique = _named(keys, select)
        elif aggregates(select):
            unique = (frozenset(),)
        else:
            unique = self._kept_keys(select, relations)
        unique += _numbers(select)
        relation = _Relation(tuple(columns), rows, unique)
        return self._limited(select, relation, keys, env)

    def _kept_keys(self, select: exp.Select, relations: Mapping[str, _Relation]) -> Keys:
        """Output columns that tell the rows of a plain SELECT apart: keys of its sources, where all are put out."""
        found = _joint_keys(relations) if not select.args.get("laterals") else ()
        names = {}
        for projection in select.expressions:
            inner = unaliased(projection)
            if is_bare_star(inner) and not inner.args.get("except_"):
                return found
            if isinstance(inner, exp.Column) and not isinstance(inner.this, exp.Star):
                names[inner.name.lower()] = (output_name(projection) or "").lower()
        return tuple(frozenset(names[k] for k in keys) for keys in found if keys <= set(names))

    def _limited(self, query: exp.Expr, relation: _Relation, keys: list[exp.Expr], env: Env) -> _Relation:
        """The relation after LIMIT and OFFSET: which rows are left is open unless the order tells all rows apart."""
        if not (query.args.get("limit") or query.args.get("offset")):
            return relation
        if isinstance(query, exp.Select) and not query.args.get("group") and aggregates(query):
            return relation
        order = query.args.get("order")
        if order is None:
            return _Relation(relation.columns, Exactness.ARBITRARY, relation.keys)
        ordered = [o.this for o in order.expressions]
        names = {n.lower() for n, _ in relation.columns}
        covered = any(isinstance(o, exp.Var) for o in ordered)
        said: set[str] = set()
        for o in ordered:
            if isinstance(o, exp.Literal) and o.this.isdigit() and 0 < int(o.this) <= len(relation.columns):
                said.add(relation.columns[int(o.this) - 1][0].lower())
            elif isinstance(o, exp.Column):
                said.add(o.name.lower())
        texts = {write(o) for o in ordered}
        if isinstance(query, exp.Select):
            said |= {(output_name(p) or "").lower() for p in query.expressions if write(unaliased(p)) in texts}
        covered = covered or names <= said or any(k <= said for k in relation.keys)
        covered = covered or bool(keys and all(write(k) in texts for k in keys))
        label = worst(
            [
                relation.rows,
                *[self._label(o, env, query).exactness for o in ordered if not isinstance(o, exp.Var | exp.Literal)],
                *[label.exactness for n, label in relation.columns if n.lower() in said or len(texts) < len(ordered)],
            ]
        )
        return _Relation(relation.columns, label if covered else worst([label, Exactness.ARBITRARY]), relation.keys)

    def _outputs(self, select: exp.Select, env: Env) -> list[tuple[str, Label]]:
        columns: list[tuple[str, Label]] = []
        for projection in select.expressions:
            inner = unaliased(projection)
            star = inner.this if isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star) else inner
            if isinstance(star, exp.Star):
                relations = env[0]
                if isinstance(inner, exp.Column):
                    relations = {inner.table.lower(): self._relation(inner.table.lower(), env)}
                skip = {c.name.lower() for c in star.args.get("except_") or []}
                changed = {r.alias.lower(): self._label(r.this, env, select) for r in star.args.get("replace") or []}
                for relation in relations.values():
                    columns += [(n, changed.get(n.lower(), x)) for n, x in relation.columns if n.lower() not in skip]
            else:
                columns.append((output_name(projection) or "", self._label(inner, env, select)))
        return columns

    def _relation(self, alias: str, env: Env) -> _Relation:
        return next((relations[alias] for relations in env if alias in relations), _Relation(()))

    def _source(self, node: exp.Expr, env: Env) -> _Relation:
        relation = _Relation(())
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            if node.db:
                relation = _Relation(
                    tuple(
                        (c.name, Label(Exactness.EXACT, is_exact_number(c.type), is_whole_number(c.type)))
                        for c in self._binder.columns(table_key(node))
                    )
                )
            else:
                relation = self._cte(node, env)
        elif isinstance(node, exp.Subquery | exp.Lateral):
            relation = self.query(node.this, env)
        alias = node.args.get("alias")
        renamed = [c.name for c in alias.args.get("columns") or []] if alias is not None else []
        if renamed and relation.columns:
            names = renamed + [n for n, _ in relation.columns[len(renamed) :]]
            relation = _Relation(
                tuple((n, label) for n, (_, label) in zip(names, relation.columns, strict=False)), relation.rows
            )
        return relation

    def _cte(self, node: exp.Table, env: Env) -> _Relation:
        cte = cte_of(node)
        if cte is None:
            return _Relation(())
        if cte.parent is not None and cte.parent.args.get("recursive"):
            names = self._ctes.setdefault(id(cte), _Relation(()))
            if names.columns or names.rows is not Exactness.EXACT:
                return names
            self._ctes[id(cte)] = _Relation((), Exactness.ARBITRARY)
        if id(cte) not in self._ctes or cte.parent is None or cte.parent.args.get("recursive"):
            found = self.query(cte.this, env[1:])
            alias = cte.args.get("alias")
            renamed = [c.name for c in alias.args.get("columns") or []] if alias is not None else []
            if renamed:
                columns = tuple((n, x) for n, (_, x) in zip(renamed, found.columns, strict=False))
                found = _Relation(columns, found.rows)
            self._ctes[id(cte)] = found
        return self._ctes[id(cte)]

    def _label(self, node: exp.Expr, env: Env, select: exp.Expr) -> Label:
        """Of an expression."""
        if isinstance(node, exp.Column):
            return self._column(node, env, select)
        if isinstance(node, exp.Select | exp.SetOperation):
            inner = self.query(node, env)
            return Label(worst([inner.rows, *(x.exactness for _, x in inner.columns)]), False)
        if isinstance(node, exp.Window):
            return self._window(node, env, select)
        name = function_name(node)
        parts = node.flatten() if isinstance(node, _CHAINS) else node.iter_expressions()
        children = [self._label(c, env, select) for c in parts]
        label = worst(c.exactness for c in children)
        if name in functions().aggregate and name is not None and not isinstance(node.parent, exp.Window):
            return _aggregate(name, node, children, self._states).worse(label)
        if is_bare_star(node):
            return Label(worst(x.exactness for r in env[0].values() for _, x in r.columns), False)
        if isinstance(node, exp.Literal):
            return Label(label, not node.is_string and "e" not in node.this.lower(), node.this.isdigit())
        if isinstance(node, exp.Cast):
            return Label(label, _is_exact_cast(node), _is_whole_cast(node))
        deciding: list[Label] = []
        if isinstance(node, exp.Predicate | exp.Not | exp.And | exp.Or | exp.Boolean | exp.Null):
            return Label(label, True, True)
        if isinstance(node, _NUMBER_SAFE) or name in ("coalesce", "ifnull", "nullif", "abs", "greatest", "least", "if"):
            deciding = children
        elif isinstance(node, exp.Filter | exp.Where | exp.Distinct | exp.Order | exp.Ordered | exp.Subquery):
            deciding = children[:1]
        numbers = bool(deciding) and all(c.summable for c in deciding)
        return Label(label, numbers, numbers and all(c.whole for c in deciding))

    def _column(self, node: exp.Column, env: Env, select: exp.Expr) -> Label:
        if isinstance(node.this, exp.Star):
            return Label(worst(x.exactness for r in env[0].values() for _, x in r.columns), False)
        name = node.name.lower()
        for relations in env:
            found = [
                label
                for alias, relation in relations.items()
                if not node.table or alias == node.table.lower()
                for label in [relation.find(name)]
                if label is not None
            ]
            if found:
                return _worst_label(found)
        if not node.table and isinstance(select, exp.Select):
            for projection in select.expressions:
                if (
                    isinstance(projection, exp.Alias)
                    and projection.alias.lower() == name
                    and projection.find(exp.Column) is not node
                ):
                    return self._label(projection.this, env, exp.Select())
        return Label(worst(x.exactness for r in env for q in r.values() for _, x in q.columns), False)

    def _window(self, node: exp.Window, env: Env, select: exp.Expr) -> Label:
        children = [self._label(c, env, select) for c in node.iter_expressions()]
        label = worst(c.exactness for c in children)
        call = node.this
        while isinstance(call, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
            call = call.this
        name = function_name(call) or ""
        if name in _RANKINGS:
            return Label(label, name not in ("percent_rank", "cume_dist"))
        if name in functions().aggregate and name not in functions().window:
            given = [self._label(a, env, select) for a in call.iter_expressions()]
            own = _aggregate(name, call, given, self._states)
            rows_frame = node.args.get("spec") is not None and str(node.args["spec"].args.get("kind")).upper() == "ROWS"
            if rows_frame and node.args.get("order") is not None and not self._tells_apart(node, env):
                own = own.worse(Exactness.ARBITRARY)
            return own.worse(label)
        summable = name in ("row_number", "ntile") or all(c.summable for c in children[:1])
        return Label(label if self._tells_apart(node, env) else worst([label, Exactness.ARBITRARY]), summable)

    def _tells_apart(self, node: exp.Window, env: Env) -> bool:
        """Whether partition and order keys of a window tell the rows of its only source apart."""
        order = node.args.get("order")
        parts = [*(node.args.get("partition_by") or []), *([o.this for o in order.expressions] if order else [])]
        said = {p.name.lower() for p in parts if isinstance(p, exp.Column)}
        return any(keys <= said for keys in _joint_keys(env[0]))


def _joint_keys(relations: Mapping[str, _Relation]) -> Keys:
    """Columns that tell the rows of a join apart: keys of all its relations together, names that two share left out."""
    if not relations:
        return ()
    joint: Keys = (frozenset(),)
    for relation in relations.values():
        joint = tuple(a | b for a in joint for b in relation.keys if not a & b)[:8]
    return joint


def _numbers(select: exp.Select) -> Keys:
    """Output columns that number all rows: `row_number()` without PARTITION BY."""
    found = []
    for projection in select.expressions:
        inner = unaliased(projection)
        numbers = isinstance(inner, exp.Window) and function_name(inner.this) == "row_number"
        name = output_name(projection)
        if numbers and name and not inner.args.get("partition_by") and not inner.args.get("alias"):
            found.append(frozenset({name.lower()}))
    return tuple(found)


def _aggregate(name: str, node: exp.Expr, given: list[Label], states: bool) -> Label:
    """What an aggregate makes of its arguments, their own labels left out.

    The engine divides an average of decimals in one of two ways, by what it knows of the rows: its last digit is open.
    """
    outer = whole_call(node)
    summable, whole = all(g.summable for g in given[:1]), all(g.whole for g in given[:1])
    if isinstance(outer, exp.WithinGroup) or name in _ANY_ORDER:
        counts = name.startswith(("count", "regr_count"))
        return Label(Exactness.EXACT, counts or summable, counts or (whole and name in _PICKS))
    if name in _SUMS:
        exact = summable if name == "sum" else whole and states
        return Label(Exactness.EXACT if exact else Exactness.FLOAT, exact and name == "sum", whole and name == "sum")
    if name in _SKETCHES:
        counts = name == "approx_count_distinct"
        return Label(Exactness.APPROX, counts, counts)
    if name in _FLOATS:
        return Label(Exactness.FLOAT)
    first = node.expressions[0] if isinstance(node, exp.Anonymous) and node.expressions else None
    order = node.find(exp.Order)
    if order is not None and first is not None and order.find_ancestor(exp.Anonymous) is node:
        argument = order.this if isinstance(order.this, exp.Expr) else first
        while isinstance(argument, exp.Distinct):
            argument = argument.expressions[0]
        if any(write(o.this) == write(argument) for o in order.expressions):
            return Label(Exactness.EXACT)
    return Label(Exactness.ARBITRARY, summable, whole)


def _grouping_parts(group: exp.Group) -> list[exp.Expr]:
    return [g for k in ("grouping_sets", "cube", "rollup") for g in group.args.get(k) or [] if isinstance(g, exp.Expr)]


def _named(keys: list[exp.Expr], select: exp.Select) -> Keys:
    """The output names of the keys; none where one of them is not an output column."""
    names = {write(unaliased(p)): (output_name(p) or "").lower() for p in select.expressions}
    aliases = {p.alias.lower() for p in select.expressions if isinstance(p, exp.Alias)}
    found = []
    for key in keys:
        name = names.get(write(key))
        if not name and isinstance(key, exp.Column) and key.name.lower() in aliases:
            name = key.name.lower()
        if not name:
            return ()
        found.append(name)
    return (frozenset(found),)


def _is_exact_cast(node: exp.Cast) -> bool:
    kind = str(node.to.this.value).upper()
    return "INT" in kind or kind in ("DECIMAL", "BOOLEAN")


def _is_whole_cast(node: exp.Cast) -> bool:
    kind = str(node.to.this.value).upper()
    return "INT" in kind or kind == "BOOLEAN"
