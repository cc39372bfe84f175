"""How an aggregate is split between shards and gateway. An allow-list: what is not on it is not split.

Three ways:

- *again*: the same aggregate over the shards' values (`max` of `max`), `sum` over `count`.
- *with its key*: `arg_max(x, y)` again over the shards' `arg_max(x, y)` and `max(y)`.
- *state*: the shard exports the engine's aggregate state, the gateway combines and finalises it. Only for the signatures
  listed here, arguments cast to them in the shard's SQL, constants passed again at the gateway.

Where a shard may run another version of the engine, states are not used: an average is split into sum and count, and what
needs a state is not split. DISTINCT (see `regroup`), ORDER BY or WITHIN GROUP inside an aggregate are never split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from muster.sql.dialect import ExportState
from muster.sql.scalars import type_expression
from muster.sql.types import INTEGERS

_SIGNED = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT"})
_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_TIMES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"})
_ORDERED = INTEGERS | _FLOATS | _TIMES | {"VARCHAR", "BOOLEAN"}
_AGAIN = {
    "sum": _SIGNED | _FLOATS | {"BOOLEAN", "HUGEINT"},
    "min": _ORDERED,
    "max": _ORDERED,
    "bool_and": frozenset({"BOOLEAN"}),
    "bool_or": frozenset({"BOOLEAN"}),
    "bit_and": _SIGNED,
    "bit_or": _SIGNED,
    "bit_xor": _SIGNED,
    "any_value": _ORDERED,
    "arbitrary": _ORDERED,
}
_MOMENTS = frozenset(
    """stddev stddev_samp stddev_pop variance var_samp var_pop sem skewness kurtosis kurtosis_pop""".split()  # noqa: SIM905
)
_PAIRS = frozenset(
    """corr covar_pop covar_samp regr_slope regr_intercept regr_r2 regr_avgx regr_avgy regr_sxx regr_syy regr_sxy
    regr_count""".split()  # noqa: SIM905
)
_QUANTILES = {"quantile_cont": _SIGNED | _FLOATS | _TIMES, "quantile_disc": _ORDERED, "quantile": _ORDERED}
_MEDIAN = _SIGNED | _FLOATS | _TIMES
_LARGE = frozenset({"approx_count_distinct"})
_ARGUMENTS = {"arg_max": "max", "max_by": "max", "argmax": "max", "arg_min": "min", "min_by": "min", "argmin": "min"}


@dataclass(frozen=True, slots=True)
class Split:
    """`shards` run on the shards, each as a column; `gateway` makes the value from those columns.

    `function`, `signature` and `constants` are those of the state, where there is one.
    """

    shards: tuple[exp.Expr, ...]
    function: str = ""
    signature: tuple[str, ...] = ()
    constants: tuple[exp.Expr, ...] = ()

    @property
    def is_state(self) -> bool:
        return isinstance(self.shards[0], ExportState)

    @property
    def is_large(self) -> bool:
        """Whether it sends much for each group, so that finer groups cost more than they save."""
        return self.function in _LARGE

    def gateway(self, columns: Sequence[exp.Expr]) -> exp.Expr:
        """The value, from the shards' columns of one group."""
        if self.is_state:
            return _call("finalize", _call("combine_aggr", self.restored(columns[0])))
        if self.function == "count":
            count = _call("coalesce", _call("sum", columns[0]), exp.Literal.number(0))
            return exp.Cast(this=count, to=exp.DataType.build("BIGINT"))
        if self.function == "avg":
            total = exp.Cast(this=_call("sum", columns[0]), to=exp.DataType.build("DOUBLE"))
            return exp.Div(this=total, expression=_call("nullif", _call("sum", columns[1]), exp.Literal.number(0)))
        return _call(self.function, *columns)

    def restored(self, column: exp.Expr) -> exp.Expr:
        """The state that a column holds."""
        return _call(
            "to_aggregate_state",
            column,
            exp.Literal.string(self.function),
            exp.Array(expressions=[exp.Literal.string(t) for t in self.signature]),
            exp.Array(expressions=[c.copy() for c in self.constants]),
        )


def arguments(call: exp.Expr) -> list[exp.Expr] | None:
    """Arguments of an aggregate call; None where it is of a kind that is never split."""
    inner = call.this if isinstance(call, exp.Filter) else call
    if not isinstance(inner, exp.Anonymous):
        return None
    for node in inner.expressions:
        if isinstance(node, exp.Distinct | exp.Order | exp.Limit | exp.IgnoreNulls | exp.RespectNulls | exp.Kwarg):
            return None
    return [] if is_count_star(inner) else list(inner.expressions)


def is_count_star(call: exp.Expr) -> bool:
    """`count(*)` or `count()`."""
    return (
        isinstance(call, exp.Anonymous)
        and call.name.lower() == "count"
        and (not call.expressions or isinstance(call.expressions[0], exp.Star))
    )


def split(call: exp.Expr, types: Sequence[str], *, states: bool = True) -> Split | None:
    """How an aggregate call (with its FILTER) with arguments of these types is split; None where it is not.

    `states`: whether every shard runs the engine of the gateway, so that states may travel.
    """
    inner = call.this if isinstance(call, exp.Filter) else call
    name = inner.name.lower()
    if name == "count" and len(types) <= 1:
        return Split((call.copy(),), "count")
    if name in ("count_if", "countif") and list(types) == ["BOOLEAN"]:
        return Split((call.copy(),), "count")
    if name in _AGAIN and len(types) == 1 and _in(types[0], _AGAIN[name]):
        return Split((call.copy(),), name)
    if name in _ARGUMENTS and len(types) == 2 and types[1] in _ORDERED:
        return Split((call.copy(), _key_of(call, _ARGUMENTS[name])), name)
    if not states and name in ("avg", "mean") and len(types) == 1 and types[0] in _SIGNED | _FLOATS:
        return Split((_renamed(call, "sum"), _renamed(call, "count")), "avg")
    return _by_state(call, name, types) if states else None


def _by_state(call: exp.Expr, name: str, types: Sequence[str]) -> Split | None:
    inner = call.this if isinstance(call, exp.Filter) else call
    if name in ("avg", "mean") and len(types) == 1 and (types[0] in _SIGNED | _FLOATS or _decimal(types[0])):
        return _state(call, "avg", ["DOUBLE" if types[0] in _FLOATS else types[0]])
    if name in _MOMENTS and len(types) == 1 and types[0] in _SIGNED | _FLOATS:
        return _state(call, name, ["DOUBLE"])
    if name in _PAIRS and len(types) == 2 and all(t in _SIGNED | _FLOATS for t in types):
        return _state(call, name, ["DOUBLE", "DOUBLE"])
    if name == "median" and len(types) == 1 and types[0] in _MEDIAN:
        return _state(call, name, [types[0]])
    if name in _QUANTILES and len(types) == 2 and types[0] in _QUANTILES[name]:
        constant = _constant(inner.expressions[1])
        if constant is not None:
            return _state(call, name, [types[0], "DOUBLE"], constant)
    if name == "approx_count_distinct" and len(types) == 1 and types[0] in _ORDERED:
        return _state(call, name, [types[0]])
    return None


def _renamed(call: exp.Expr, name: str) -> exp.Expr:
    copy = call.copy()
    (copy.this if isinstance(copy, exp.Filter) else copy).set("this", name)
    return copy


def _key_of(call: exp.Expr, extreme: str) -> exp.Expr:
    """`max(y) FILTER (x IS NOT NULL AND …)` for `arg_max(x, y) FILTER (…)`: rows without x do not count."""
    inner = call.this if isinstance(call, exp.Filter) else call
    value, key = inner.expressions
    condition: exp.Expr = exp.Not(this=exp.Is(this=exp.Paren(this=value.copy()), expression=exp.Null()))
    if isinstance(call, exp.Filter):
        condition = exp.And(this=condition, expression=exp.Paren(this=call.expression.this.copy()))
    return exp.Filter(this=_call(extreme, key.copy()), expression=exp.Where(this=condition))


def _in(type_name: str, allowed: frozenset[str]) -> bool:
    return type_name in allowed or (_decimal(type_name) and "DOUBLE" in allowed)


def _decimal(type_name: str) -> bool:
    return type_name.startswith("DECIMAL(")


def _state(call: exp.Expr, name: str, signature: list[str], constant: exp.Expr | None = None) -> Split:
    copy = call.copy()
    inner = copy.this if isinstance(copy, exp.Filter) else copy
    cast: list[exp.Expr] = [
        exp.Cast(this=argument, to=type_expression(type_name))
        for argument, type_name in zip(inner.expressions, signature, strict=True)
    ]
    if constant is not None:
        cast[-1] = constant
    inner.set("expressions", cast)
    constants: list[exp.Expr] = [exp.Null() for _ in signature]
    if constant is not None:
        constants[-1] = constant
    return Split((ExportState(this=copy),), name, tuple(signature), tuple(constants))


def _constant(node: exp.Expr) -> exp.Expr | None:
    """A share such as 0.5, written out or as a parameter, as a typed literal."""
    while isinstance(node, exp.Paren | exp.Cast):
        node = node.this
    if isinstance(node, exp.Literal):
        try:
            value = float(node.this)
        except ValueError:
            return None
        if 0 <= value <= 1:
            return exp.Cast(this=exp.Literal.string(repr(value)), to=exp.DataType.build("DOUBLE"))
    return None


def _call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=list(arguments))
