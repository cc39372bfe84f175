"""Lets exactly one harmless SELECT through, at the gateway and again at the agent.

Whatever is not on a list is refused: kinds of syntax, functions, tables. The text is read by sqlglot, checked, written
again from the tree, and what was written is read and checked once more as DuckDB parses it. Nobody's own text runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from muster.errors import MusterError, SqlBind, SqlForbidden, SqlSyntax, TooLarge
from muster.sql import engine_guard
from muster.sql.dialect import DIALECT, ExportState, write
from muster.sql.engine_parser import engine_parser
from muster.sql.functions import denial, functions
from muster.sql.growth import CAPS, Caps, check_growth
from muster.wording import first_line


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on one statement."""

    text_bytes: int = 16 << 10
    depth: int = 30  # nested brackets and CASEs
    tokens: int = 6_000
    literal_bytes: int = 4 << 10
    names: int = 50  # in WITH clauses: planning a chain of them takes a time that grows with its square
    states: bool = False  # whether EXPORT_STATE may be used
    growth: Caps = CAPS  # of values, expressions and relations


USER = Limits()
SHARD = Limits(
    text_bytes=64 << 10, tokens=24_000, depth=34, literal_bytes=16 << 10, names=100, states=True, growth=CAPS.times(2)
)
"""For what a gateway sends to a shard."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A statement that passed: its tree, its text written from the tree, and the tables (`schema.name`) it reads."""

    tree: exp.Query
    sql: str
    tables: frozenset[str]


_ALLOWED: tuple[type[exp.Expr], ...] = (
    # queries
    exp.Select, exp.Union, exp.Except, exp.Intersect, exp.Subquery, exp.With, exp.CTE, exp.From, exp.Join, exp.Where,
    exp.Group, exp.Having, exp.Qualify, exp.Order, exp.Ordered, exp.Limit, exp.LimitOptions, exp.Offset, exp.Distinct,
    exp.Fetch, exp.Values, exp.Tuple, exp.Table, exp.TableAlias, exp.Lateral, exp.Unnest, exp.Rollup, exp.Cube,
    exp.GroupingSets, exp.Window, exp.WindowSpec, exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls,
    # names and values
    exp.Column, exp.Identifier, exp.Alias, exp.Aliases, exp.Star, exp.Dot, exp.Literal, exp.Boolean, exp.Null,
    exp.ByteString, exp.RawString,
    exp.Var,
    exp.Placeholder, exp.Parameter, exp.DataType, exp.DataTypeParam, exp.Interval, exp.Columns, exp.ColumnDef,
    exp.Kwarg, exp.PropertyEQ, exp.Slice, exp.Bracket, exp.Array, exp.Struct, exp.Map, exp.ToMap, exp.Lambda,
    exp.Comprehension,
    # operators
    exp.And, exp.Or, exp.Not, exp.Paren, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ,
    exp.NullSafeNEQ, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.Escape, exp.SimilarTo, exp.RegexpLike,
    exp.RegexpFullMatch, exp.Glob, exp.StartsWith, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Pow,
    exp.Neg, exp.Abs, exp.DPipe, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseNot, exp.BitwiseXor, exp.BitwiseLeftShift,
    exp.BitwiseRightShift, exp.Case, exp.If, exp.Cast, exp.TryCast, exp.Exists, exp.Any, exp.All, exp.AtTimeZone,
    exp.Collate, exp.JSONExtract, exp.JSONExtractScalar, exp.ArrayOverlaps, exp.ArrayContainsAll, exp.ArrayContainedBy,
    exp.Extract,
    # calls (by name, held against `functions`) and clocks
    exp.Anonymous, exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp, exp.Localtime, exp.Localtimestamp,
)  # fmt: skip

_HINTS: dict[type[exp.Expr], str] = {
    exp.Pivot: "Write PIVOT as agg(…) FILTER (WHERE …) columns, UNPIVOT as a UNION ALL.",
    exp.TableSample: "A sample differs from call to call; filter on a column, for example on the step.",
    exp.CurrentUser: "There are no users in a job's tables.",
    exp.PositionalColumn: "Name the column instead.",
}
_STARTS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.L_PAREN})
_SYSTEM = frozenset({"main", "temp", "system", "pg_catalog", "information_schema", "memory"})
_OPEN = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE})
_CLOSE = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END})


def guard(sql: str, *, tables: Collection[str] | None = None, limits: Limits = USER) -> Guarded:
    """Check a statement. `tables`, where given, are the only `schema.name` that it may read.

    Raises TooLarge, SqlSyntax, SqlForbidden, and SqlBind (with `table`) for a table that does not exist; all with the
    place in the text where it is known and a hint that names the fix.
    """
    size = len(sql.encode())
    if size > limits.text_bytes:
        raise TooLarge(
            f"The statement has {size} bytes; at most {limits.text_bytes} are allowed.",
            hint="Ask for less in one statement, or send several.",
        )
    try:
        tree = _parse(sql, limits)
        names = _check(tree, sql, tables, limits)
        written = write(tree)
        _check_engine(sql, written, limits)
    except RecursionError:
        raise TooLarge("The statement nests too deeply.", hint="Name its parts in a WITH clause.") from None
    return Guarded(tree, written, names)


def _parse(sql: str, limits: Limits) -> exp.Query:
    if "\x00" in sql:
        raise SqlSyntax("The statement holds a NUL character.", hint="Remove it.")
    try:
        found = DIALECT.tokenize(sql)
    except TokenError as error:
        raise SqlSyntax(
            f"The text cannot be split into words: {first_line(error).rstrip('.')}.", hint="Close every quote."
        ) from None
    _check_tokens(found, limits)
    try:
        statements = [s for s in DIALECT.parser().parse(found, sql) if s is not None]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        line, column = first.get("line"), first.get("col")
        near = str(first.get("highlight") or "").strip()
        raise SqlSyntax(
            str(first.get("description") or first_line(error)).strip().rstrip(".") + (f" near {near!r}." if near else "."),
            hint="Check the statement against DuckDB's SQL; it must be one SELECT.",
            position=(line, max(1, column - len(near) + 1)) if line and column else None,
        ) from None
    except (AttributeError, TypeError, ValueError, KeyError, IndexError, AssertionError) as error:
        raise SqlSyntax(f"The text does not parse ({type(error).__name__}).", hint="It must be one SELECT.") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query) or isinstance(statements[0], exp.Table):
        kind = _kind(statements[0]) if statements else "nothing"
        raise SqlForbidden(f"Only one SELECT can be run, not {kind}.", hint="Send one SELECT, or a WITH … SELECT.")
    return statements[0]


def _check_tokens(found: Sequence[Token], limits: Limits) -> None:
    words = [t for t in found if t.token_type is not TokenType.SEMICOLON]
    if not words:
        raise SqlSyntax("There is no statement.", hint="Send one SELECT.")
    if words[0].token_type not in _STARTS:
        raise SqlForbidden(
            f"Only SELECT can be run, not {words[0].text[:40].upper()}.",
            hint="Send one SELECT, or a WITH … SELECT.",
            position=_start(words[0]),
        )
    depth = count = 0
    ended = False
    for token in found:
        count += 1
        if token.token_type is TokenType.SEMICOLON:
            ended = True
        elif ended:
            raise SqlForbidden(
                "The text holds more than one statement; exactly one is allowed.",
                hint="Send one SELECT at a time.",
                position=_start(token),
            )
        if token.token_type in _OPEN:
            depth += 1
            if depth > limits.depth:
                raise TooLarge(
                    f"The statement nests deeper than {limits.depth} brackets.",
                    hint="Name its parts in a WITH clause.",
                    position=_start(token),
                )
        elif token.token_type in _CLOSE:
            depth -= 1
        if len(token.text) > limits.literal_bytes:
            raise TooLarge(
                f"A literal or name is longer than {limits.literal_bytes} characters.",
                hint="Compare with something shorter, or use a pattern.",
                position=_start(token),
            )
    if count > limits.tokens:
        raise TooLarge(f"The statement has {count} words; at most {limits.tokens} are allowed.", hint="Ask for less.")


def _start(token: Token) -> tuple[int, int]:
    return token.line, max(1, token.col - len(token.text) + 1)


def _check(tree: exp.Query, sql: str, tables: Collection[str] | None, limits: Limits) -> frozenset[str]:
    names: set[str] = set()
    defined = sum(1 for _ in tree.find_all(exp.CTE))
    if defined > limits.names:
        raise TooLarge(
            f"The WITH clauses have {defined} names; at most {limits.names} are allowed.",
            hint="Put several steps into one.",
        )
    for node in tree.walk():
        if isinstance(node, ExportState):
            if not limits.states:
                raise SqlForbidden("EXPORT_STATE is for gateways only.", hint="Write the aggregate without it.")
        elif not isinstance(node, _ALLOWED) or type(node) is exp.Command:
            raise SqlForbidden(
                f"{_kind(node)} is not allowed.",
                hint=_HINTS.get(type(node), "Use plain SELECT syntax."),
                position=_place(node, sql),
            )
        if isinstance(node, exp.Anonymous):
            _check_call(node, sql)
        elif isinstance(node, exp.Table):
            name = _table_name(node, sql, tables)
            if name:
                names.add(name)
        elif isinstance(node, exp.Join) and str(node.args.get("method") or "").upper() == "POSITIONAL":
            raise SqlForbidden(
                "POSITIONAL JOIN is not allowed: rows of many ranks have no positions.", hint="Join on columns."
            )
    return frozenset(names)


def _check_call(node: exp.Anonymous, sql: str) -> None:
    name = node.name.lower()
    if name in functions().allowed or _makes_rows(node):
        return
    reason = denial(name)
    if reason is None:
        known = name in functions().known
        close = difflib.get_close_matches(name, functions().allowed, n=3)
        reason = "It is not on the list of allowed functions." if known else "The engine has no function of this name."
        reason += f" Similar: {', '.join(close)}." if close else ""
    raise SqlForbidden(f"The function {name}() is not allowed.", hint=reason, position=_place(node, sql))


def _makes_rows(node: exp.Anonymous) -> bool:
    """A `range` or `generate_series`; its bounds are checked on the engine's tree."""
    return node.name.lower() in ("range", "generate_series", "unnest")


def _table_name(node: exp.Table, sql: str, tables: Collection[str] | None) -> str | None:
    if isinstance(node.this, exp.Func):
        name = node.this.name.lower()
        if not (isinstance(node.this, exp.Anonymous) and _makes_rows(node.this)):
            raise SqlForbidden(
                f"The table function {name}() is not allowed.",
                hint="Read the job's tables; unnest(), range() and generate_series() are the only table functions.",
                position=_place(node, sql),
            )
        return None
    if not isinstance(node.this, exp.Identifier):
        raise SqlForbidden(f"{_kind(node.this)} is not a table.", hint="Name a table as schema.table.")
    if not node.db:
        if _is_in_sight(node):
            return None
        raise _unknown(node.name, node, sql, tables)
    if node.catalog and node.catalog.lower() != "global":
        raise SqlBind(
            f"There is no catalogue {node.catalog!r}.",
            hint=f"Write global.{node.db}.{node.name}.",
            position=_place(node, sql),
            table=f"{node.db}.{node.name}",
        )
    name = f"{node.db}.{node.name}".lower()
    if tables is None and node.db.lower() in _SYSTEM:
        raise _unknown(f"{node.db}.{node.name}", node, sql, tables)
    if tables is not None:
        match = next((t for t in tables if t.lower() == name), None)
        if match is None:
            raise _unknown(f"{node.db}.{node.name}", node, sql, tables)
        return match
    return f"{node.db}.{node.name}"


def _is_in_sight(table: exp.Table) -> bool:
    """Whether a WITH clause names this table where it stands: one of a query around it, of those before it in the clause,
    or itself where the clause is recursive."""
    name = table.name.lower()
    child: exp.Expr = table
    within: exp.With | None = None
    while (parent := child.parent) is not None:
        clause = next((v for v in parent.args.values() if isinstance(v, exp.With)), None)
        names: list[exp.Expr] = clause.expressions if clause is not None and clause is not within else []
        if isinstance(parent, exp.With):
            within = parent
            place = next(i for i, cte in enumerate(parent.expressions) if cte is child)
            names = parent.expressions[: place + 1 if parent.recursive else place]
        if any(cte.alias.lower() == name for cte in names):
            return True
        child = parent
    return False


def _unknown(name: str, node: exp.Expr, sql: str, tables: Collection[str] | None) -> MusterError:
    known = sorted(tables or ())
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    close += [t for t in known if t.split(".")[-1].lower() == name.split(".")[-1].lower() and t not in close]
    if close:
        hint = f"Similar tables: {', '.join(close)}."
    elif known:
        hint = f"The job has {', '.join(known[:12])}{', …' if len(known) > 12 else ''}."
    else:
        hint = "Name a table as schema.table, or define it in a WITH clause."
    return SqlBind(f"There is no table {name}.", hint=hint, position=_place(node, sql), table=name)


def _check_engine(sql: str, written: str, limits: Limits) -> None:
    parser = engine_parser()
    original = parser.parse(sql)
    again = parser.parse(written)
    engine_guard.check(again, states=limits.states)
    check_growth(again[0], limits.growth)
    if not parser.same(original, again):
        raise SqlForbidden(
            "The statement cannot be written again without a change of meaning, so it is not run.",
            hint="Write rare syntax in a plainer way: more parentheses, standard operators, functions as name(a, b).",
        )


def _kind(node: object) -> str:
    if isinstance(node, exp.Command):
        return str(node.this).upper()
    name = type(node).__name__
    return "".join(f" {c}" if c.isupper() and i and not name[i - 1].isupper() else c for i, c in enumerate(name)).upper()


def _place(node: exp.Expr, sql: str) -> tuple[int, int] | None:
    """Where a node stands in the text: its own place, else that of the first name below it."""
    starts = [n.meta["start"] for n in node.walk() if isinstance(n.meta.get("start"), int)]
    if not starts:
        return None
    start = node.meta["start"] if isinstance(node.meta.get("start"), int) else min(starts)
    return sql.count("\n", 0, start) + 1, start - (sql.rfind("\n", 0, start) + 1) + 1
