"""The health answer: its fields, the number rule, HTTP statuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import dead, hanging, running, slowed, steady
from muster.diagnosis.report import headers, health_json, http_status, json_value
from muster.model import Phase, Status, Verdict

FIELDS = {
    "status", "phase", "summary", "findings", "drain_candidates", "recommendation", "last_checkpoint", "coverage", "steps",
    "checks", "notes", "links", "generation", "as_of", "evaluated_at",
}  # fmt: skip


def test_the_answer_has_all_fields_and_is_json(evaluate: Evaluate) -> None:
    history = running(own=slowed(steady(), [2], 15))
    history.down = {2}
    body = health_json(evaluate(history))
    assert body.keys() >= FIELDS
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    assert (body["job"], body["generation"], body["world_size"], body["step"]) == ("j", "g1", 6, 119)
    finding = next(f for f in body["findings"] if f["id"] == "straggler")
    assert finding.keys() >= {
        "id", "severity", "kind", "ranks", "victims", "hosts", "message", "observed", "threshold", "confidence", "step",
        "evidence", "onset", "since", "next",
    }  # fmt: skip
    assert finding["ranks"] == [2]
    columns = finding["evidence"]["columns"]
    assert all(len(row) == len(columns) for row in finding["evidence"]["rows"])
    assert body["coverage"]["states"] == {"answered": 4, "unreachable": 2}
    assert body["coverage"]["missing"][0]["rank"] == 4
    assert sum(body["coverage"]["states"].values()) == body["coverage"]["world_size"]
    step = next(s for s in body["steps"] if s["name"] == "job_slowdown_proxy")
    assert {"name", "type", "exactness"} == step["columns"][0].keys()
    assert step["coverage"]["answered"] == 4
    check = body["checks"]["job_health:slowdown"][0]
    assert (check["status"], check["observedUnit"]) == (finding["severity"], "slowest/median")
    assert body["links"]["self"] == "/jobs/j/health"


def test_rows_of_a_step_are_capped_and_counted(evaluate: Evaluate) -> None:
    e = evaluate(running())
    capped = {s["name"]: s for s in health_json(e, max_rows=2)["steps"]}
    assert len(capped["cluster_snapshot"]["rows"]) == 2
    assert capped["cluster_snapshot"]["row_count"] == 6
    full = {s["name"]: s for s in health_json(e, max_rows=None)["steps"]}
    assert len(full["comm_trend_by_step"]["rows"]) == full["comm_trend_by_step"]["row_count"] == 119


@pytest.mark.parametrize(
    ("status", "phase", "code"),
    [
        (Status.PASS, Phase.RUNNING, 200), (Status.WARN, Phase.RUNNING, 200), (Status.FAIL, Phase.RUNNING, 503),
        (Status.FAIL, Phase.FAILED, 503), (Status.FAIL, Phase.STARTING, 503), (Status.UNKNOWN, Phase.RUNNING, 503),
        (Status.UNKNOWN, Phase.CHECKPOINT, 503), (Status.UNKNOWN, Phase.EVAL, 503), (Status.UNKNOWN, Phase.STARTING, 200),
        (Status.UNKNOWN, Phase.FINISHED, 200), (Status.UNKNOWN, Phase.SUSPENDED, 200),
    ],
)  # fmt: skip
def test_http_status(evaluate: Evaluate, status: Status, phase: Phase, code: int) -> None:
    e = replace(evaluate(running(2, nodes=1, steps=30)), verdict=Verdict(status, phase, "x"))
    assert http_status(e) == code
    assert http_status(e, on_fail=200) == 200
    assert headers(e) == {
        "Muster-Status": status.value, "Muster-Phase": phase.value, "Cache-Control": "no-store",
    }  # fmt: skip


def test_a_warn_does_not_hide_that_a_node_did_not_answer(evaluate: Evaluate) -> None:
    history = running(own=slowed(steady(), [0], 5))
    history.down = {2}
    e = evaluate(history, slowdown_fail=9.0)
    assert (e.status, e.blind, http_status(e)) == (Status.WARN, True, 503)
    assert health_json(e)["coverage"]["answered"] == 4


@pytest.mark.parametrize(
    ("value", "out"),
    [
        (2**53, 2**53), (-(2**53), -(2**53)), (2**53 + 1, "9007199254740993"), (Decimal("1.10"), "1.10"), (1.5, 1.5),
        (math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (True, True), (None, None), ("x", "x"),
        ([1, 2**60, None], [1, str(2**60), None]), ({"a": math.nan}, {"a": "NaN"}), (b"\x01", "AQ=="),
        (timedelta(seconds=2), 2.0), (datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=1))), "2026-01-02T02:00:00Z"),
        (datetime(2026, 1, 2, tzinfo=UTC).date(), "2026-01-02"),
    ],
)  # fmt: skip
def test_the_number_rule(value: object, out: object) -> None:
    assert json_value(value) == out


def test_the_answer_about_a_hang_shows_where_each_rank_stands(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 1, 20)
    evidence = health_json(evaluate(history))["findings"][0]["evidence"]
    names = [c["name"] for c in evidence["columns"]]
    assert {"last_op", "last_seq", "inflight_op", "inflight_seq", "state"} <= set(names)
    assert evidence["rows"][0][names.index("rank")] == 1
    assert len(evidence["rows"]) == 6


def test_onset_is_when_the_rank_died(evaluate: Evaluate) -> None:
    history = running()
    dead(history, 1, after_s=3)
    onset = health_json(evaluate(history))["findings"][0]["onset"]
    assert onset == {"step": 119, "time": "2026-05-04T11:59:57Z"}
