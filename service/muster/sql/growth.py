"""How large the values and trees of a statement may grow, judged before it runs.

A short text can ask for enormous values without a large literal: `a || a AS b, b || b AS c, …` doubles at each step,
`regexp_replace(x, '', x, 'g')` squares, a nested lambda multiplies, `SELECT * FROM q, q` doubles columns at each level of a
WITH. The engine's memory limit does not count single values and its interrupt does not stop inside one, so such statements
are refused here. The estimate follows the engine's tree: every column of a stored table counts as `COLUMN` bytes, and what
is made of it by name and through subqueries is counted from there. It bounds growth *relative* to the stored values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from muster.errors import TooLarge
from muster.sql.engine_parser import Node
from muster.sql.sizes import MANY, PAIRS, REDUCES, SMALL, WIDTH, arguments_of, function_name, size_of

COLUMN = 100
"""Bytes that a stored value counts."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that one value, one expression and one relation may count."""

    bytes: int = 256 << 10
    nodes: int = 50_000  # of an expression, with the expressions behind its names
    columns: int = 5_000
    relations: int = 1_000  # with those behind the names of a WITH

    def times(self, factor: int) -> Caps:
        return Caps(self.bytes * factor, self.nodes * factor, self.columns * factor, self.relations * factor)


CAPS = Caps()
"""For what a user sends."""


@dataclass(frozen=True, slots=True)
class Value:
    """An estimate: bytes of a value, and nodes of the expression that makes it."""

    bytes: int
    nodes: int = 1


@dataclass(slots=True)
class Relation:
    """Columns by name; `other` for one that is not known by name, `width` their number, `scans` the relations below."""

    columns: dict[str, Value] = field(default_factory=dict)
    other: Value = Value(COLUMN)
    width: int = WIDTH
    scans: int = 1

    @property
    def largest(self) -> Value:
        known = [*self.columns.values(), self.other]
        return Value(max(v.bytes for v in known), max(v.nodes for v in known))


def check_growth(statement: Node, caps: Caps) -> None:
    """Raise TooLarge where a value, an expression or a relation of the statement may grow beyond the caps."""
    _Walk(caps).query(statement, {}, [])


class _Walk:
    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self._below = 0  # relations in the subqueries of the expressions of one SELECT

    def query(self, node: Node, ctes: Mapping[str, Relation], outer: Sequence[Mapping[str, Relation]]) -> Relation:
        known = dict(ctes)
        for entry in (node.get("cte_map") or {}).get("map") or ():
            name, body = str(entry["key"]).lower(), entry["value"]["query_node"]
            if body.get("type") == "RECURSIVE_CTE_NODE":
                made = self._recursive(name, body, known, outer)
            else:
                made = self.query(body, known, outer)
            known[name] = _renamed(made, entry["value"].get("aliases"))
        if node.get("type") == "SELECT_NODE":
            return self._select(node, known, outer)
        parts = [self.query(n, known, outer) for n in _inner_queries(node)]
        for expression in _expressions([node.get("modifiers")]):
            self._value(expression, [{str(i): p for i, p in enumerate(parts)}, *outer], known)
        return self._relation(_either(parts))

    def _recursive(
        self, name: str, body: Node, known: Mapping[str, Relation], outer: Sequence[Mapping[str, Relation]]
    ) -> Relation:
        """One turn of a recursion must not multiply what the turn before gave."""
        left = self.query(body["left"], known, outer)
        seen = Relation(other=Value(COLUMN), width=left.width)
        turn = _Walk(Caps(COLUMN * 10, self._caps.nodes, self._caps.columns, self._caps.relations))
        right = turn.query(body["right"], {**known, name: seen}, outer)
        return _either([left, right])

    def _select(self, node: Node, ctes: Mapping[str, Relation], outer: Sequence[Mapping[str, Relation]]) -> Relation:
        before, self._below = self._below, 0
        sources: dict[str, Relation] = {}
        scopes = [sources, *outer]
        self._from(node.get("from_table") or {}, sources, scopes, ctes)
        made = Relation(columns={}, other=Value(0), width=0, scans=max(1, sum(s.scans for s in sources.values())))
        sources["alias of this list"] = aliases = Relation(columns={}, other=Value(0), width=0, scans=0)
        for item in node.get("select_list") or ():
            if item.get("class") == "STAR":
                self._star(item, sources, scopes, ctes, made)
                continue
            value = self._value(item, scopes, ctes)
            name = str(item.get("alias") or (item.get("column_names") or [""])[-1]).lower()
            stars = any(n.get("class") == "STAR" for n in _all(item))
            made.width += sum(s.width for s in sources.values()) if stars else 1
            if name and not stars:
                made.columns[name] = _larger(made.columns.get(name, Value(0)), value)
                if item.get("alias"):
                    aliases.columns[name] = _larger(aliases.columns.get(name, Value(0)), value)
            else:
                made.other = _larger(made.other, value)
        for expression in _expressions([v for k, v in node.items() if k not in ("select_list", "from_table", "cte_map")]):
            self._value(expression, scopes, ctes)
        made.scans += self._below
        self._below = before
        return self._relation(made)

    def _star(
        self,
        item: Node,
        sources: Mapping[str, Relation],
        scopes: Sequence[Mapping[str, Relation]],
        ctes: Mapping[str, Relation],
        made: Relation,
    ) -> None:
        for name, source in sources.items():
            if name != "alias of this list":
                made.width += source.width
                made.other = _larger(made.other, source.other)
                for column, value in source.columns.items():
                    made.columns[column] = _larger(made.columns.get(column, Value(0)), value)
        for entry in item.get("replace_list") or ():
            key = str(entry["key"]).lower()
            made.columns[key] = _larger(made.columns.get(key, Value(0)), self._value(entry["value"], scopes, ctes))
        if item.get("rename_list") or item.get("expr"):
            made.other = _larger(made.other, made.largest)

    def _from(
        self,
        node: Node,
        sources: dict[str, Relation],
        scopes: Sequence[Mapping[str, Relation]],
        ctes: Mapping[str, Relation],
    ) -> None:
        kind = node.get("type")
        if kind == "JOIN":
            self._from(node["left"], sources, scopes, ctes)
            self._from(node["right"], sources, scopes, ctes)
            for expression in _expressions([node.get("condition")]):
                self._value(expression, scopes, ctes)
            return
        if kind == "BASE_TABLE":
            own = ctes.get(str(node.get("table_name")).lower()) if not node.get("schema_name") else None
            made = own or Relation()
        elif kind == "SUBQUERY":
            made = self.query(node["subquery"]["node"], ctes, scopes)
        elif kind == "EXPRESSION_LIST":
            values = [self._value(e, scopes, ctes) for row in node.get("values") or () for e in row]
            width = max((len(row) for row in node.get("values") or ()), default=1)
            made = Relation(other=_largest(values), width=width)
        elif kind == "TABLE_FUNCTION":
            call = node.get("function") or {}
            arguments = [self._value(a, scopes, ctes) for a in arguments_of(call)]
            unnested = str(call.get("function_name", "")).lower() == "unnest"
            made = Relation(other=_largest(arguments) if unnested else Value(SMALL), width=2)
        else:
            return
        name = str(node.get("alias") or node.get("table_name") or f"source {len(sources)}").lower()
        if name in sources:
            name += f" {len(sources)}"
        sources[name] = _renamed(made, node.get("column_name_alias"))
        self._relation(Relation(width=sum(s.width for s in sources.values()), scans=sum(s.scans for s in sources.values())))

    def _relation(self, made: Relation) -> Relation:
        if made.width > self._caps.columns:
            raise TooLarge(
                f"A part of the statement has some {made.width} columns; at most {self._caps.columns} are allowed.",
                hint="Name the columns that are needed in place of * where a name of a WITH clause is joined with itself.",
            )
        if made.scans > self._caps.relations:
            raise TooLarge(
                f"The statement reads some {made.scans} relations, counted through its WITH clause; at most"
                f" {self._caps.relations} are allowed.",
                hint="Join fewer names of the WITH clause with themselves.",
            )
        return made

    def _value(self, node: Node, scopes: Sequence[Mapping[str, Relation]], ctes: Mapping[str, Relation]) -> Value:
        kind = node.get("class")
        if kind == "COLUMN_REF":
            return _named(node["column_names"], scopes)
        if kind == "CONSTANT":
            return Value(len(str((node.get("literal") or {}).get("text", "")).encode()) or 1)
        if kind == "SUBQUERY":
            inner = self.query(node["subquery"]["node"], ctes, scopes)
            self._below += inner.scans
            child = self._value(node["child"], scopes, ctes) if node.get("child") else Value(0, 0)
            size = {"SCALAR": inner.largest.bytes, "ARRAY": inner.largest.bytes * MANY}.get(
                str(node.get("subquery_type")), 1
            )
            return self._hold(Value(size, 1 + child.nodes), node)
        if kind == "STAR":
            return _largest([s.largest for s in scopes[0].values()])
        if kind == "LAMBDA":
            return self._value(node["expr"], scopes, ctes)
        name = function_name(node)
        arguments = arguments_of(node)
        if any(a.get("class") == "LAMBDA" for a in arguments):
            return self._lambda(name, node, arguments, scopes, ctes)
        own = {id(a) for a in arguments}
        values = [self._value(a, scopes, ctes) for a in arguments]
        rest = [self._value(e, scopes, ctes) for e in _expressions(list(node.values())) if id(e) not in own]
        nodes = 1 + sum(v.nodes for v in values) + sum(v.nodes for v in rest)
        size = size_of(node, arguments, [v.bytes for v in values], [v.bytes for v in rest])
        if name in PAIRS and size <= self._caps.bytes:
            size = SMALL
        return self._hold(Value(size, nodes), node)

    def _lambda(
        self,
        name: str,
        node: Node,
        arguments: Sequence[Node],
        scopes: Sequence[Mapping[str, Relation]],
        ctes: Mapping[str, Relation],
    ) -> Value:
        """A list of n elements (as many as fit) gives n times what its lambda makes of one."""
        over = [self._value(a, scopes, ctes) for a in arguments if a.get("class") != "LAMBDA"]
        total = max((v.bytes for v in over), default=COLUMN)
        nodes = 1 + sum(v.nodes for v in over)
        count = max(1, total // 8)
        size = total
        for call in (a for a in arguments if a.get("class") == "LAMBDA"):
            names = [str(n["column_names"][-1]).lower() for n in _all(call.get("lhs")) if n.get("column_names")]
            if name in REDUCES:
                # the first parameter holds what came before: it may be added to, not multiplied
                held = 1_000_000
                params = {n: Value(held if i == 0 else COLUMN) for i, n in enumerate(names)}
                free = _Walk(Caps(1 << 60, self._caps.nodes, self._caps.columns, self._caps.relations))
                made = free._value(call["expr"], [{"lambda": Relation(params, Value(0))}, *scopes], ctes)
                if made.bytes >= 2 * held:
                    raise _grows(name, made.bytes // held, node, "Refer to the first parameter of the lambda once only.")
                size = max(size, total + count * max(SMALL, made.bytes - held))
            else:
                each = max(COLUMN, total // count)
                params = {n: Value(each) for n in names}
                made = self._value(call["expr"], [{"lambda": Relation(params, Value(0))}, *scopes], ctes)
                size = max(size, count * made.bytes)
            nodes += made.nodes
        return self._hold(Value(size, nodes), node)

    def _hold(self, value: Value, node: Node) -> Value:
        name = str(node.get("function_name") or "").lower()
        if value.bytes > self._caps.bytes:
            raise _grows(
                name or "an expression",
                value.bytes // COLUMN,
                node,
                "Concatenate and replace less often in one statement, or shorten values first, such as left(x, 200).",
            )
        if value.nodes > self._caps.nodes:
            raise TooLarge(
                f"An expression has some {value.nodes} parts, counted through the names that it uses; at most"
                f" {self._caps.nodes} are allowed.",
                hint="Use a name of the same statement less often, or aggregate in between.",
            )
        return value


def _grows(name: str, factor: int, node: Node, hint: str) -> TooLarge:
    shown = f"{name}()" if name[:1].isalpha() and " " not in name else name
    return TooLarge(f"A value made by {shown} could be some {factor:,} times as large as what is stored.", hint=hint)


def _named(names: Sequence[str], scopes: Sequence[Mapping[str, Relation]]) -> Value:
    """What a name may mean: the largest of all columns of this name in sight. A name of a relation is a row of it."""
    wanted = [n.lower() for n in names]
    found: list[Value] = []
    for scope in scopes:
        for relation, source in scope.items():
            found += [source.columns[n] for n in wanted if n in source.columns]
            if wanted[-1] == relation:
                found.append(Value(source.largest.bytes * min(source.width, WIDTH), source.largest.nodes))
            elif wanted[-1] not in source.columns and source.other.bytes:
                found.append(source.other)
    made = _largest(found) if found else Value(COLUMN)
    return Value(made.bytes, made.nodes + 1)


def _renamed(made: Relation, names: Sequence[str] | None) -> Relation:
    if not names:
        return made
    return Relation({str(n).lower(): made.largest for n in names}, made.largest, made.width, made.scans)


def _either(parts: Sequence[Relation]) -> Relation:
    made = Relation({}, Value(0), 0, 0)
    for part in parts:
        for name, value in part.columns.items():
            made.columns[name] = _larger(made.columns.get(name, Value(0)), value)
        made.other = _larger(made.other, part.other)
        made.width = max(made.width, part.width)
        made.scans += part.scans
    if len(parts) > 1:  # columns of set operations meet by position
        made.columns = {name: _larger(value, made.largest) for name, value in made.columns.items()}
    return made


def _larger(one: Value, other: Value) -> Value:
    return Value(max(one.bytes, other.bytes), max(one.nodes, other.nodes))


def _largest(values: Sequence[Value]) -> Value:
    return Value(max((v.bytes for v in values), default=SMALL), max((v.nodes for v in values), default=1))


def _expressions(parts: Sequence[object]) -> Iterator[Node]:
    """The outermost expressions below some parts of a tree."""
    for part in parts:
        if isinstance(part, dict):
            if part.get("class") is not None and "query_location" in part:
                yield part
            elif "cte_map" not in part:
                yield from _expressions(list(part.values()))
        elif isinstance(part, list):
            yield from _expressions(part)


def _inner_queries(node: Node) -> list[Node]:
    parts = [*(node.get("children") or ()), node.get("left"), node.get("right"), node.get("query"), node.get("child")]
    return [p for p in parts if isinstance(p, dict) and "cte_map" in p]


def _all(tree: object) -> Iterator[Node]:
    if isinstance(tree, dict):
        yield tree
        for part in tree.values():
            yield from _all(part)
    elif isinstance(tree, list):
        for part in tree:
            yield from _all(part)
