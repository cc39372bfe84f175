"""Plans: routes, waves, sharing, pruning, errors, caching."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from muster.errors import MusterError, NotDistributable, ParameterError, SqlBind, SqlForbidden
from muster.model import ColumnType
from muster.sql import explain
from muster.sql.plan import Catalogue, Plan, Route, Statement
from muster.sql.planner import Planner
from sql.jobs import catalogue

FIXTURES = Path(__file__).parent / "fixtures"
RULES = [
    (path.stem, case) for path in sorted((FIXTURES / "rules").glob("*.yaml")) for case in yaml.safe_load(path.read_text())
]


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner()


def plan_of(planner: Planner, *sql: str, params: Mapping[str, object] | None = None) -> Plan:
    return planner.plan([Statement(f"s{i}", text, dict(params or {})) for i, text in enumerate(sql)], catalogue())  # type: ignore[arg-type]


@pytest.mark.parametrize(("rule", "case"), RULES, ids=[f"{r}: {c['name']}" for r, c in RULES])
def test_rule_gives_the_expected_fragments(planner: Planner, rule: str, case: dict[str, object]) -> None:
    plan = plan_of(planner, str(case["sql"]), params={"step_window": 200})
    found = [
        {"route": str(f.route), "wave": i, "sql": f.sql}
        | ({"ranks": sorted(f.ranks)} if f.ranks is not None else {})
        | ({"only": only} if (only := [str(p) for p in f.pins if p.tag != "_rank" or p.values is None]) else {})
        | ({"why": f.reason} if f.reason else {})
        for i, wave in enumerate(plan.waves, 1)
        for f in wave.fragments
    ]
    for fragment in found:
        for number, scalar in enumerate(sorted(s.id for w in plan.waves for s in w.scalars)):
            fragment["sql"] = str(fragment["sql"]).replace(f"${scalar}", f"$s{number}")
    expected = case["fragments"]
    assert isinstance(expected, list)
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_equal_fragments_of_several_statements_are_fetched_once(planner: Planner) -> None:
    plan = plan_of(
        planner,
        "SELECT _rank, max(global_step) FROM global.python.torch_step_timing GROUP BY _rank",
        "SELECT _rank, max(global_step) FROM python.torch_step_timing GROUP BY _rank",
    )
    assert len(plan.fragments) == 1
    assert plan.merges[0].fragments == plan.merges[1].fragments


def test_one_wave_for_statements_without_scalars_and_two_with(planner: Planner) -> None:
    plan = plan_of(
        planner,
        "SELECT count(*) FROM process.rank",
        "SELECT _rank, count(*) FROM python.comm_collective WHERE global_step > "
        "(SELECT max(global_step) - $step_window FROM python.torch_step_timing) GROUP BY _rank",
        params={"step_window": 200},
    )
    assert len(plan.waves) == 2
    assert {t for f in plan.waves[0].fragments for t in f.tables} == {"process.rank", "python.torch_step_timing"}
    assert [f.route for f in plan.waves[1].fragments] == [Route.LOCAL]
    assert [s.type for s in plan.waves[0].scalars] == ["BIGINT"]
    assert plan.waves[1].fragments[0].scalars == (plan.waves[0].scalars[0].id,)


def test_job_health_moves_aggregates_only(planner: Planner) -> None:
    """The shapes of the steps of job_health: nothing is gathered row by row but process.rank, one row per rank."""
    plan = plan_of(
        planner,
        "SELECT n.rank, r.age_s FROM cluster.nodes n LEFT JOIN global.process.rank r ON n.rank = r._rank",
        """WITH bounds AS (SELECT max(global_step) - $step_window AS lo FROM global.python.torch_step_timing),
           own AS (SELECT t._rank, t.step_duration_sec - t.comm_blocked_ms / 1000 AS c
                   FROM global.python.torch_step_timing t, bounds b WHERE t.global_step > b.lo),
           med AS (SELECT _rank, median(c) AS c, count(*) AS n FROM own GROUP BY _rank)
           SELECT _rank, c / (SELECT median(c) FROM med) FROM med ORDER BY _rank""",
        """SELECT _rank, global_step, sum(blocked_ms) FROM global.python.comm_collective WHERE global_step >
           (SELECT max(global_step) - $step_window FROM global.python.torch_step_timing) GROUP BY _rank, global_step""",
        params={"step_window": 200},
    )
    assert len(plan.waves) == 2
    assert {t for f in plan.fragments if f.route is Route.GATHER for t in f.tables} == {"process.rank"}
    assert [m.relations for m in plan.merges] == [("cluster.nodes",), (), ()]


@pytest.mark.parametrize(
    ("sql", "kind", "says"),
    [
        ("SELECT nope FROM python.comm_collective", SqlBind, "nope"),
        ("SELECT op FROM python.comm_collective WHERE max(bytes) > 1", SqlBind, "aggregate"),
        ("SELECT op + bytes FROM python.comm_collective", SqlBind, "+"),
        ("SELECT * FROM python.com_collective", SqlBind, "com_collective"),
        ("SELECT $nope FROM python.comm_collective", ParameterError, "nope"),
        ("SELECT ? FROM python.comm_collective", ParameterError, "names"),
        ("SELECT sleep_ms(1)", SqlForbidden, "sleep_ms"),
        ("SELECT * FROM python.comm_collective, process.comm_collective", SqlBind, "process.comm_collective"),
    ],
)
def test_error_of_a_statement_is_the_users_and_says_what(
    planner: Planner, sql: str, kind: type[MusterError], says: str
) -> None:
    with pytest.raises(kind) as caught:
        plan_of(planner, sql)
    assert says in caught.value.detail
    assert caught.value.extra["statement"] == "s0"


def test_error_points_into_the_users_own_text(planner: Planner) -> None:
    with pytest.raises(SqlBind) as caught:
        plan_of(planner, "SELECT op,\n       bites\nFROM python.comm_collective")
    assert caught.value.position == (2, 8)
    assert "bytes" in str(caught.value.hint)


def test_parameter_that_cannot_be_one_is_named(planner: Planner) -> None:
    for value in (1 << 70, "x" * 5000, [1], "a\0b"):
        with pytest.raises(ParameterError) as caught:
            plan_of(planner, "SELECT $p", params={"p": value})
        assert caught.value.extra["parameter"] == "p"


def test_parameter_is_a_value_and_never_text(planner: Planner) -> None:
    plan = plan_of(planner, "SELECT op FROM python.comm_collective WHERE op = $op", params={"op": "x' OR '1'='1"})
    assert "CAST('x'' OR ''1''=''1' AS TEXT)" in plan.fragments[0].sql


def test_clock_stands_still(planner: Planner) -> None:
    moment = datetime(2026, 12, 1, 10, 0, 0, 123456, UTC)
    statement = Statement("s", "SELECT now(), current_date FROM python.comm_collective WHERE to_timestamp(bytes) < now()")
    plan = planner.plan([statement], catalogue(), now=moment)
    later = planner.plan([statement], catalogue(), now=datetime(2027, 1, 1, tzinfo=UTC))
    assert "2026-12-01 10:00:00.123456+00" in plan.fragments[0].sql
    assert "2027-01-01" in later.fragments[0].sql
    assert [c.name for c in plan.merges[0].columns] == ["now()", "current_date"]


def test_column_that_cannot_travel_is_refused_by_name() -> None:
    odd = Catalogue({"my.odd": (ColumnType("id", "BIGINT"), ColumnType("u", "UUID"))})
    planner = Planner()
    with pytest.raises(NotDistributable, match=r"u of my\.odd has the type UUID"):
        planner.plan([Statement("s", "SELECT u FROM my.odd")], odd)
    planner.plan([Statement("s", "SELECT id FROM my.odd")], odd)


def test_type_that_is_none_is_refused_by_name() -> None:
    bad = Catalogue({"my.bad": (ColumnType("x", "BIGINT); DROP TABLE y; --"),)})
    with pytest.raises(NotDistributable, match=r"x of my\.bad"):
        Planner().plan([Statement("s", "SELECT x FROM my.bad")], bad)


def test_rows_of_a_table_that_no_rank_owns_are_never_grouped_on_one_shard() -> None:
    """A table that is not known to be a rank's may have `_rank` NULL on many shards: one group, not one per shard."""
    custom = Catalogue({"my.t": (ColumnType("x", "BIGINT"),)})
    plan = Planner().plan([Statement("s", "SELECT _rank, sum(x) FROM my.t GROUP BY _rank")], custom)
    assert [f.route for f in plan.fragments] == [Route.PARTIAL]


def test_new_catalogue_version_is_planned_anew(planner: Planner) -> None:
    one = Catalogue({"my.t": (ColumnType("x", "BIGINT"),)})
    two = Catalogue({"my.t": (ColumnType("x", "DOUBLE"),)})
    statement = Statement("s", "SELECT x FROM my.t")
    assert planner.plan([statement], one).merges[0].columns[0].type == "BIGINT"
    assert planner.plan([statement], two).merges[0].columns[0].type == "DOUBLE"


def test_plan_is_kept(planner: Planner) -> None:
    first = plan_of(planner, "SELECT count(*) FROM python.trace_event")
    second = plan_of(planner, "SELECT count(*) FROM python.trace_event")
    assert first.merges[0] is second.merges[0]


def test_planner_is_safe_to_share_between_threads() -> None:
    planner = Planner()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(5):
                plan_of(
                    planner, f"SELECT _rank, sum(bytes) + {number % 2} + {i} FROM python.comm_collective GROUP BY _rank"
                )
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_explain_shows_routes_filters_and_exactness(planner: Planner) -> None:
    plan = plan_of(
        planner,
        "SELECT op, sum(duration_ms), any_value(role) FROM python.comm_collective WHERE _rank = 3 AND bytes > 1 GROUP BY 1",
    )
    shown = explain.as_dict(plan)
    (fragment,) = shown["waves"][0]["fragments"]
    assert fragment["route"] == "partial"
    assert fragment["ranks"] == [3]
    assert fragment["pushed_filter"] == "_rank = 3 AND bytes > 1"
    assert [c["exactness"] for c in shown["statements"][0]["columns"]] == ["exact", "float", "arbitrary"]
    text = explain.tree(plan)
    assert "1 round trip, 1 fragments" in text
    assert "filter: _rank = 3 AND bytes > 1" in text


@pytest.mark.parametrize(
    ("sql", "labels"),
    [
        ("SELECT sum(bytes), sum(duration_ms), avg(bytes), count(*) FROM {t}", "exact float exact exact"),
        ("SELECT median(duration_ms), max(duration_ms) FROM {t}", "exact exact"),
        ("SELECT op FROM {t} LIMIT 3", "arbitrary"),
        ("SELECT op FROM {t} ORDER BY op LIMIT 3", "exact"),
        ("SELECT op, bytes FROM {t} ORDER BY op LIMIT 3", "arbitrary arbitrary"),
        ("SELECT op, sum(bytes) s FROM {t} GROUP BY op ORDER BY s, op LIMIT 3", "exact exact"),
        ("SELECT op, sum(bytes) s FROM {t} GROUP BY op ORDER BY s LIMIT 3", "arbitrary arbitrary"),
        ("SELECT op FROM {t} GROUP BY op HAVING sum(duration_ms) > 1", "float"),
        ("SELECT arg_max(op, bytes), first(op), any_value(op) FROM {t}", "arbitrary arbitrary arbitrary"),
        ("SELECT mode(op), list(op) FROM {t}", "arbitrary arbitrary"),
        ("SELECT list(op ORDER BY op), string_agg(op, ',' ORDER BY bytes) FROM {t}", "exact arbitrary"),
        ("SELECT approx_count_distinct(op), approx_quantile(bytes, 0.5) FROM {t}", "approx approx"),
        ("SELECT x + 1, y FROM (SELECT sum(duration_ms) x, count(*) y FROM {t})", "float exact"),
        ("WITH a AS (SELECT _rank, avg(duration_ms) m FROM {t} GROUP BY _rank) SELECT _rank FROM a WHERE m > 1", "float"),
        ("SELECT row_number() OVER (ORDER BY op), rank() OVER (ORDER BY op) FROM {t}", "arbitrary exact"),
        ("SELECT g, lag(s) OVER (ORDER BY g) FROM (SELECT global_step g, sum(bytes) s FROM {t} GROUP BY 1)", "exact exact"),
        ("SELECT DISTINCT ON (op) op, bytes FROM {t}", "arbitrary arbitrary"),
        ("SELECT g AS x FROM (SELECT global_step g, sum(bytes) s FROM {t} GROUP BY 1) ORDER BY s DESC, g LIMIT 1", "exact"),
        ("SELECT s FROM (SELECT global_step g, sum(bytes) s FROM {t} GROUP BY 1) ORDER BY g % 2 LIMIT 1", "arbitrary"),
        ("SELECT sum(bytes * 2 + 1), sum(bytes * 0.5), sum(bytes / 2), sum(ln(bytes)) FROM {t}", "exact exact float float"),
    ],
)  # fmt: skip
def test_exactness_says_what_sql_leaves_open(planner: Planner, sql: str, labels: str) -> None:
    plan = plan_of(planner, sql.format(t="python.comm_collective"))
    assert [str(c.exactness) for c in plan.merges[0].columns] == labels.split()


def test_a_plan_is_kept_while_the_tables_that_it_reads_are_the_same(planner: Planner) -> None:
    made = Planner()
    base = catalogue()
    statement = Statement("q", "SELECT _rank, max(bytes) FROM python.comm_collective GROUP BY _rank")
    plan = made.plan([statement], base)
    more = Catalogue({**base.tables, "my.own": (ColumnType("x", "BIGINT"),)})
    assert made.plan([statement], more) is plan
    wider = (*base.tables["python.comm_collective"], ColumnType("extra", "BIGINT"))
    other = Catalogue({**base.tables, "python.comm_collective": wider})
    assert made.plan([statement], other) is not plan
    assert made.plan([statement], Catalogue(base.tables, states=False)) is not plan
