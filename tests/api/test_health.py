"""GET /jobs/{job}/health: statuses, headers, parameters, texts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from api.conftest import World


def test_a_healthy_job_passes(job: World) -> None:
    answer = job.client.get("/jobs/j/health")
    body = answer.json()
    assert answer.status_code == 200, body
    assert (body["status"], body["phase"]) == ("pass", "running"), body["findings"]
    assert answer.headers["content-type"] == "application/health+json"
    assert answer.headers["muster-status"] == "pass"
    assert answer.headers["muster-phase"] == "running"
    assert answer.headers["cache-control"] == "no-store"
    assert "retry-after" not in answer.headers
    assert body["coverage"]["answered"] == body["coverage"]["world_size"] == 4
    assert body["round_trips"] <= 2


def test_a_straggler_is_named_with_its_host_and_evidence(world: World) -> None:
    world.slow_rank = 2
    world.register()
    body = world.client.get("/jobs/j/health").json()
    assert body["status"] in ("warn", "fail")
    (finding,) = [f for f in body["findings"] if f["ranks"]]
    assert (finding["ranks"], finding["hosts"], finding["kind"]) == ([2], ["n1"], "worker")
    assert finding["victims"] == [0, 1, 3]
    assert finding["evidence"]["rows"]
    assert body["drain_candidates"] == []


def test_a_node_that_does_not_answer_makes_it_unknown_and_503(job: World) -> None:
    job.silent.add("n1")
    answer = job.client.get("/jobs/j/health")
    body = answer.json()
    assert answer.status_code == 503
    assert body["status"] not in ("pass", "warn")
    assert [(m["rank"], m["state"]) for m in body["coverage"]["missing"]] == [(2, "unreachable"), (3, "unreachable")]
    assert job.client.get("/jobs/j/health?on_fail=200").status_code == 200


def test_a_failing_job_is_503_and_200_where_asked(job: World) -> None:
    job.silent |= {"n0", "n1"}
    job.now += timedelta(seconds=300)
    assert job.client.get("/jobs/j/health").status_code == 503
    assert job.client.get("/jobs/j/health", params={"on_fail": "200"}).status_code == 200


def test_plain_text_is_a_short_report(job: World) -> None:
    answer = job.client.get("/jobs/j/health", headers={"Accept": "text/plain"})
    assert answer.headers["content-type"].startswith("text/plain")
    assert "4 of 4 ranks answered" in answer.text
    assert len(answer.text.splitlines()) < 30


def test_texts_are_chinese_where_asked(job: World) -> None:
    english, chinese = (job.client.get("/jobs/j/health", params={"lang": x}).json()["summary"] for x in ("en", "zh"))
    assert english != chinese
    assert any("\u4e00" <= c <= "\u9fff" for c in chinese)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("step_window=abc", "step_window"),
        ("step_window=-5", "step_window"),
        ("step_windw=100", "step_windw"),
        ("job_health.nope=1", "job_health.nope"),
        ("deadline=soon", "deadline"),
        ("deadline=0", "deadline"),
        ("deadline=1e9", "deadline"),
        ("min_coverage=2", "min_coverage"),
        ("lang=fr", "lang"),
        ("on_fail=418", "on_fail"),
        ("max_age=-1", "max_age"),
        ("step_window=10&step_window=20", "step_window"),
    ],
)
def test_a_malformed_parameter_is_a_400_that_names_it(job: World, query: str, named: str) -> None:
    answer = job.client.get(f"/jobs/j/health?{query}")
    problem = answer.json()
    assert answer.status_code == 400, problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["parameter"], problem["status"]) == (named, 400)
    assert problem["code"] == "parameter"


def test_an_unknown_parameter_is_told_the_nearest(job: World) -> None:
    assert "step_window" in job.client.get("/jobs/j/health?step_windw=9").json()["hint"]


def test_parameters_reach_the_diagnosis(job: World) -> None:
    for name in ("step_window", "job_health.step_window"):
        body = job.client.get("/jobs/j/health", params={name: 50}).json()
        assert body["parameters"]["job_health"]["step_window"] == 50


def test_an_unknown_job_is_a_404_problem(world: World) -> None:
    answer = world.client.get("/jobs/nope/health")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "job_not_found"


def test_an_unknown_diagnosis_is_a_404_that_names_those_there_are(job: World) -> None:
    answer = job.client.get("/jobs/j/health?diagnosis=job_helth")
    assert (answer.status_code, answer.json()["code"]) == (404, "diagnosis_not_found")
    assert "job_health" in answer.json()["hint"]


def test_all_diagnoses_run_in_one_plan(job: World) -> None:
    body = job.client.get("/jobs/j/health?diagnosis=all&deadline=60").json()
    assert "job_health" in body["diagnoses"]
    assert body["round_trips"] <= 2


def test_a_diagnosis_in_full_has_all_its_steps_and_its_plan(job: World) -> None:
    body = job.client.get("/jobs/j/diagnoses/job_health?explain=true").json()
    names = [s["name"] for s in body["steps"]]
    expected = ["cluster_snapshot", "rank_step_lag", "job_slowdown_proxy", "comm_trend_by_step", "train_step_pacing"]
    assert set(expected) <= set(names)
    assert body["plan"]["waves"]


async def _rounds(world: World, count: int) -> None:
    for _ in range(count):
        await world.app.state.parts.evaluator.once()
        world.now += timedelta(seconds=15)


@pytest.mark.anyio
async def test_since_and_confirmations_are_the_evaluators_and_not_the_askers(world: World) -> None:
    world.slow_rank = 1
    world.register()
    first = world.now
    await _rounds(world, 3)
    for _ in range(5):
        body = world.client.get("/jobs/j/health").json()
    (finding,) = [f for f in body["findings"] if f["ranks"]]
    assert finding["confirmations"] == 3
    assert finding["since"] == first.isoformat().replace("+00:00", "Z")


@pytest.mark.anyio
async def test_a_kept_verdict_is_given_only_while_it_is_young_enough(job: World) -> None:
    await _rounds(job, 1)
    kept = job.client.get("/jobs/j/health?max_age=60").json()["evaluated_at"]
    fresh = job.client.get("/jobs/j/health?max_age=1").json()["evaluated_at"]
    assert kept != fresh
