"""The SQL dialect of Muster: DuckDB's, read and written without loss.

Four changes to sqlglot's DuckDB dialect:

- `agg(…) [FILTER (…)] EXPORT_STATE` is parsed and written, so that gateway and agent can guard what travels between them.
- Functions keep the name they were written with. sqlglot maps hundreds of functions to neutral nodes and back, to
  translate between dialects. Muster never translates; a call stays a call (`exp.Anonymous`), and its name can be held
  against the engine's own catalogue.
- `substring(x FROM 1 FOR 2)`, `trim(BOTH 'a' FROM x)`, `position('a' IN x)` (`strpos`) and `overlay(…)` become
  plain calls.
- `IS NOT NULL` and `x NOT LIKE y` keep their form.

That the text written is the statement read is not taken on trust: `engine_parser` compares the two as DuckDB parses them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.generators.duckdb import DuckDBGenerator
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import TokenType

from muster.errors import TooLarge

_REREAD = 20
"""Words read again, for each word of the text. Statements that people write stay below 1."""

_OWN_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT")
"""Calls whose arguments are not a plain list: the parsers of sqlglot are needed to read them."""


_UNITS = frozenset(
    unit + plural
    for unit in (
        "YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND", "WEEK", "QUARTER", "DECADE",
        "CENTURY", "MILLENNIUM",
    )
    for plural in ("", "S")
) | {"CENTURIES", "MILLENNIA"}  # fmt: skip


class ExportState(exp.Expression):
    """`this EXPORT_STATE`: the aggregate's state instead of its value."""

    arg_types = {"this": True}  # noqa: RUF012 (sqlglot's own convention)


class MusterParser(DuckDBParser):
    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS = {  # noqa: RUF012
        **{name: parse for name, parse in DuckDBParser.FUNCTION_PARSERS.items() if name in _OWN_SYNTAX},
        "SUBSTRING": lambda self: self._parse_words("substring", {"FROM": "1", "FOR": None}),
        "OVERLAY": lambda self: self._parse_words("overlay", {"PLACING": None, "FROM": None, "FOR": None}),
        "POSITION": lambda self: self._parse_position_call(),
        "TRIM": lambda self: self._parse_trim_call(),
    }

    ARRAY_CONSTRUCTORS = {"ARRAY": exp.Array}  # noqa: RUF012
    TYPE_CONVERTERS: ClassVar[dict[Any, Any]] = {}
    NO_PAREN_FUNCTION_PARSERS = {  # noqa: RUF012
        name: parse for name, parse in DuckDBParser.NO_PAREN_FUNCTION_PARSERS.items() if name != "IF"
    }

    def reset(self) -> None:
        super().reset()
        self._reread = 0

    def _advance(self, times: int = 1) -> None:
        """sqlglot goes back where a reading fails; nested attempts (joins without ON) double with every word."""
        if times < 0:
            self._reread -= times
            if self._reread > _REREAD * max(self._tokens_size, 100):
                raise TooLarge(
                    "The statement can be read in too many ways.",
                    hint="Write ON or USING right after the table of each JOIN; name nested parts in a WITH clause.",
                )
        super()._advance(times)

    def _parse_window(self, this: exp.Expr | None, alias: bool = False) -> exp.Expr | None:
        if this is not None and not alias:
            if self._match_text_seq("FILTER", advance=False) and isinstance(this, exp.Func):
                this = self._parse_filter(this)
            if self._match_text_seq("EXPORT_STATE"):
                return self.expression(ExportState(this=this))
        return super()._parse_window(this, alias=alias)

    def _parse_words(self, name: str, words: dict[str, str | None]) -> Any:
        """`name(x WORD y …)`, the words in order, or a plain call. `words`: the value of a word that is left out."""
        found: list[Any] = self._parse_csv(self._parse_lambda)
        left = list(words.items())
        while left:
            word, default = left.pop(0)
            if self._match_text_seq(word):
                found.append(self._parse_bitwise())
            elif default is not None and left and self._curr and self._curr.text.upper() in dict(left):
                found.append(exp.Literal.number(default))
        return self.expression(exp.Anonymous(this=name, expressions=found))

    def _parse_position_call(self) -> Any:
        first = self._parse_bitwise()
        self._match(TokenType.IN)
        return self.expression(exp.Anonymous(this="strpos", expressions=[self._parse_bitwise(), first]))

    def _parse_trim_call(self) -> Any:
        names = {"BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}
        side = next((w for w in names if self._match_text_seq(w)), "BOTH")
        found: list[Any] = [] if self._match(TokenType.FROM) else self._parse_csv(self._parse_lambda)
        if not found or self._match(TokenType.FROM):
            found = [self._parse_bitwise(), *found]
        return self.expression(exp.Anonymous(this=names[side], expressions=found))

    def _parse_interval(self, require_interval: bool = True, parse_function_unit: bool = True) -> Any:
        """`INTERVAL '1 day 2 hours'` is a cast of the text, as it is to the engine; a unit beside it is left to sqlglot."""
        ahead = self._tokens[self._index : self._index + 3]
        if len(ahead) > 1 and ahead[0].text.upper() == "INTERVAL" and ahead[1].token_type == TokenType.STRING:
            unit = ahead[2].text.upper() if len(ahead) > 2 else ""
            if unit not in _UNITS:
                self._advance(2)
                text = exp.Literal.string(ahead[1].text)
                return self.expression(exp.Cast(this=text, to=exp.DataType(this=exp.DType.INTERVAL)))
        return super()._parse_interval(require_interval, parse_function_unit)

    def _parse_in(self, this: exp.Expr | None, alias: bool = False) -> Any:
        """`x IN [1, 2]` asks a list, not a row of values."""
        if self._curr and self._curr.token_type == TokenType.L_BRACKET:
            return self.expression(exp.In(this=this, field=self._parse_unary()))
        return super()._parse_in(this, alias=alias)

    def _parse_filter(self, this: exp.Expr) -> exp.Expr:
        index = self._index
        self._advance()
        if not self._match_text_seq("("):
            self._retreat(index)
            return this
        self._match_text_seq("WHERE")
        condition = self._parse_disjunction()
        self._match_r_paren()
        return self.expression(exp.Filter(this=this, expression=self.expression(exp.Where(this=condition))))


class MusterGenerator(DuckDBGenerator):
    TRANSFORMS = {  # noqa: RUF012
        **{kind: make for kind, make in DuckDBGenerator.TRANSFORMS.items() if kind is not exp.Select},
        ExportState: lambda self, node: f"{self.sql(node, 'this')} EXPORT_STATE",
        exp.Not: lambda self, node: _not(self, node),
        exp.Pow: lambda self, node: self.binary(node, "**"),
        exp.IgnoreNulls: lambda self, node: f"{self.sql(node, 'this')} IGNORE NULLS",
        exp.WithinGroup: lambda self, node: _within_group(self, node),
    }

    def distinct_sql(self, expression: exp.Distinct) -> str:
        arguments = self.expressions(expression, flat=True)
        on = self.sql(expression, "on")
        return "DISTINCT" + (f" {arguments}" if arguments else "") + (f" ON {on}" if on else "")

    def ignorenulls_sql(self, expression: exp.IgnoreNulls) -> str:
        return f"{self.sql(expression, 'this')} IGNORE NULLS"

    def withingroup_sql(self, expression: exp.WithinGroup) -> str:
        return _within_group(self, expression)


def _not(self: Any, node: exp.Not) -> str:
    inner = node.this
    if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null | exp.Boolean):
        return f"{self.sql(inner, 'this')} IS NOT {self.sql(inner, 'expression')}"
    return f"NOT {self.sql(inner)}"


def _within_group(self: Any, node: exp.WithinGroup) -> str:
    return f"{self.sql(node, 'this')} WITHIN GROUP ({self.sql(node, 'expression').strip()})"


class MusterTokenizer(DuckDB.Tokenizer):
    KEYWORDS = {k: v for k, v in DuckDB.Tokenizer.KEYWORDS.items() if k != "LIST"}  # noqa: RUF012


class MusterDialect(DuckDB):
    Tokenizer = MusterTokenizer
    Parser = MusterParser
    Generator = MusterGenerator
    INDEX_OFFSET = 0  # `x[1]` stays `x[1]`; sqlglot would count from zero in between

    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        return path


DIALECT = MusterDialect()


def write(tree: exp.Expr, *, pretty: bool = False) -> str:
    """The text of a tree, in one line unless `pretty`. The tree stays as it is."""
    return DIALECT.generate(tree, copy=False, pretty=pretty, normalize_functions=False, comments=False)
