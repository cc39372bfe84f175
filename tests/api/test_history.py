"""`GET /jobs/{job}/health/history`: changes, since, confirmations; over restarts; bounded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from api.conftest import World
from muster.gateway.history import MAX_CHANGES, SAVE_EVERY, VerdictHistory
from muster.gateway.settings import GatewaySettings
from muster.registry.store import Store


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def kept(state: Path) -> Iterator[World]:
    made = World(settings(state))
    with made.client:
        made.register()
        yield made


def settings(state: Path) -> GatewaySettings:
    return GatewaySettings(evaluate_s=0, state=state, expires_s=3600)


def rounds(world: World, n: int = 1) -> None:
    """Background evaluations, 15 s apart."""
    for _ in range(n):
        anyio.run(world.app.state.parts.evaluator.once)
        world.now += timedelta(seconds=15)


def history(world: World, query: str = "") -> dict[str, Any]:
    answer = world.client.get(f"/jobs/j/health/history{query}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_before_the_first_round_there_is_none(kept: World) -> None:
    body = history(kept)
    assert (body["status"], body["changes"], body["confirmations"]) == (None, [], 0)


def test_asking_is_not_part_of_the_history(kept: World) -> None:
    kept.client.get("/jobs/j/health")
    assert history(kept)["changes"] == []


def test_a_fault_that_comes_and_goes_is_two_changes_with_its_length(kept: World) -> None:
    first = kept.now
    rounds(kept, 2)
    kept.slow_rank = 1
    kept.register()
    began = kept.now
    rounds(kept, 3)
    standing = history(kept)
    kept.slow_rank = None
    kept.register()
    rounds(kept, 1)
    body = history(kept)

    (finding,) = [f for f in standing["findings"] if f["id"] == "straggler"]
    assert (finding["ranks"], finding["confirmations"], finding["since"]) == ([1], 3, stamp(began))
    assert standing["since"] == stamp(began)
    assert [(c["was"], c["status"]) for c in body["changes"]] == [
        (standing["status"], "pass"), ("pass", standing["status"]), (None, "pass"),
    ]  # fmt: skip
    assert body["changes"][2]["at"] == stamp(first)
    assert [f["id"] for f in body["changes"][1]["appeared"]] == ["straggler"]
    (cleared,) = body["changes"][0]["cleared"]
    assert (cleared["id"], cleared["since"], cleared["confirmations"]) == ("straggler", stamp(began), 3)
    assert (body["status"], body["findings"]) == ("pass", [])


def stamp(at: Any) -> str:
    return str(at.isoformat().replace("+00:00", "Z"))


def test_it_survives_a_restart_of_the_gateway(kept: World, state: Path) -> None:
    kept.slow_rank = 1
    kept.register()
    began = kept.now
    rounds(kept)
    before = history(kept)
    kept.app.state.parts.store.close()

    again = World(settings(state))
    again.now = kept.now
    again.slow_rank = 1
    with again.client:
        again.register()
        assert history(again) == before
        rounds(again)
        (finding,) = [f for f in history(again)["findings"] if f["id"] == "straggler"]
        assert (finding["since"], finding["confirmations"]) == (stamp(began), 2)
        fresh = again.client.get("/jobs/j/health").json()
        assert fresh["since"] == stamp(began)


def test_a_restart_forgets_few_confirmations(state: Path, world: World) -> None:
    store = Store(state)
    made = VerdictHistory(store)
    for _ in range(2 * SAVE_EVERY + 3):
        made.record("j", None, body_of(0), world.now)  # type: ignore[arg-type]
    (finding,) = VerdictHistory(store).history("j", 10)["findings"]
    assert finding["confirmations"] == 2 * SAVE_EVERY
    store.close()


def test_the_newest_come_first_and_as_many_as_asked_for(kept: World) -> None:
    for rank in (1, None, 2, None):
        kept.slow_rank = rank
        kept.register()
        rounds(kept)
    assert [c["status"] == "pass" for c in history(kept)["changes"]] == [True, False, True, False]
    body = history(kept, "?limit=1")
    assert (len(body["changes"]), body["changes_kept"]) == (1, 4)
    assert body["changes"][0]["status"] == "pass"


@pytest.mark.parametrize("query", ["?limit=0", "?limit=201", "?limit=x", "?lmit=3"])
def test_a_bad_parameter_is_refused_by_name(kept: World, query: str) -> None:
    answer = kept.client.get(f"/jobs/j/health/history{query}")
    assert answer.status_code == 400
    assert "limit" in answer.text


def test_an_unknown_job_is_404(kept: World) -> None:
    assert kept.client.get("/jobs/none/health/history").status_code == 404


def body_of(i: int) -> dict[str, Any]:
    status = "pass" if i % 2 else "fail"
    finding = {"diagnosis": "job_health", "id": "stalled", "severity": "fail", "ranks": [1], "onset": {"step": i}}
    return {"status": status, "phase": "running", "findings": [] if i % 2 else [finding], "summary": f"{i}", "step": i}


def test_changes_are_bounded_and_what_is_dropped_is_counted(state: Path, world: World) -> None:
    store = Store(state)
    made = VerdictHistory(store)
    for i in range(MAX_CHANGES + 7):
        made.record("j", None, body_of(i), world.now)  # type: ignore[arg-type]
    body = made.history("j", 1000)
    assert (body["changes_kept"], body["changes_dropped"]) == (MAX_CHANGES, 7)
    assert body["changes"][0]["summary"] == f"{MAX_CHANGES + 6}"
    assert VerdictHistory(store).history("j", 1000) == body
    store.close()


def test_the_onset_stays_that_of_the_first_round(state: Path, world: World) -> None:
    store = Store(state)
    made = VerdictHistory(store)
    for i in (0, 2, 4):
        made.record("j", None, body_of(i), world.now)  # type: ignore[arg-type]
    (finding,) = made.history("j", 10)["findings"]
    assert (finding["onset"], finding["confirmations"]) == ({"step": 0}, 3)
    store.close()


@pytest.mark.parametrize(
    ("kept_body", "status"),
    [
        ({"status": "warn", "since": "2026-01-01T00:00:00Z", "findings": {"job_health/straggler/1,2": {
            "since": "2026-01-01T00:00:00Z", "confirmations": 4}}}, "warn"),
        ({"status": "warn"}, None), ({"status": "warn", "since": "x", "findings": {}, "changes": [3]}, None), ({}, None),
    ],
)  # fmt: skip
def test_what_an_older_version_kept_is_read_and_what_cannot_be_read_is_nothing(
    state: Path, world: World, kept_body: dict[str, object], status: str | None
) -> None:
    store = Store(state)
    store.put_verdict("j", world.now, kept_body)
    body = VerdictHistory(store).history("j", 10)
    assert body["status"] == status
    assert [f["ranks"] for f in body["findings"]] == ([[1, 2]] if status else [])
    store.close()
