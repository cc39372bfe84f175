"""Aggregates over distinct values: the shards send each value once, the gateway aggregates them.

`count(DISTINCT op)` needs no row twice. So the shards group by what the call reads as well, and the gateway runs the call
as it was written over those groups. Other aggregates of the SELECT are split as ever: combining finer groups is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from muster.sql.builder import column
from muster.sql.dialect import write
from muster.sql.scopes import holds_aggregate, own_nodes


@dataclass(slots=True)
class Values:
    """Expressions that the shards group by in addition, by their text, in the order in which they were met."""

    found: dict[str, exp.Expr] = field(default_factory=dict)

    def place(self, node: exp.Expr) -> int:
        """The number of an expression."""
        text = write(node)
        if text not in self.found:
            self.found[text] = node.copy()
        return list(self.found).index(text)


def is_over_distinct(call: exp.Expr) -> bool:
    """Whether a call gives the same however often a row comes."""
    inner = call.this if isinstance(call, exp.Filter) else call
    return isinstance(inner, exp.Anonymous) and any(isinstance(_bare(a), exp.Distinct) for a in inner.expressions)


def regrouped(call: exp.Expr, values: Values, alias: str) -> exp.Expr | None:
    """The call over the columns `alias.v0`, `alias.v1` … in place of what it reads; None where it cannot be done."""
    copy = call.copy()
    holder = exp.Paren(this=copy)
    inner = copy.this if isinstance(copy, exp.Filter) else copy
    whole = [e for a in inner.expressions for e in _distinct_parts(_bare(a)) if not isinstance(e, exp.Literal)]
    if isinstance(copy, exp.Filter):
        whole.append(copy.expression.this)
    if any(holds_aggregate(e) or any(isinstance(n, exp.Query | exp.Window | exp.Lambda) for n in e.walk()) for e in whole):
        return None
    texts = {write(e) for e in whole}
    stack: list[exp.Expr] = [holder]
    while stack:
        node = stack.pop()
        if node is not holder and (write(node) in texts or isinstance(node, exp.Column)):
            if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
                return None
            node.replace(column(f"v{values.place(node)}", alias))
        else:
            stack.extend(node.iter_expressions())
    if any(isinstance(n, exp.Subquery) for n in own_nodes(holder)):
        return None
    found: exp.Expr = holder.this
    return found


def _bare(argument: exp.Expr) -> exp.Expr:
    """An argument without its ORDER BY."""
    return argument.this if isinstance(argument, exp.Order) and isinstance(argument.this, exp.Expr) else argument


def _distinct_parts(argument: exp.Expr) -> list[exp.Expr]:
    return list(argument.expressions) if isinstance(argument, exp.Distinct) else []
