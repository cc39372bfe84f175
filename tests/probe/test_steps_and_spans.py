"""Step rows, the synthesised step span, spans, events and checkpoints."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from muster.probe.reader import LifeDir, discover
from muster.probe.recorder import Recorder
from probe.kit import make_recorder, rows

STEPS, TRACE = "python.torch_step_timing", "python.trace_event"


def test_a_step_lasts_from_boundary_to_boundary(recorder: Recorder, life: LifeDir) -> None:
    for _ in range(3):
        time.sleep(0.01)
        recorder.steps.boundary("user", tokens=64, loss=0.5)
    first, second, third = rows(life, STEPS)
    assert [r["local_step"] for r in (first, second, third)] == [1, 2, 3]
    assert third["end_ns"] - second["end_ns"] == pytest.approx(third["step_duration_sec"] * 1e9, abs=1e6)
    assert second["step_duration_sec"] >= 0.01
    assert (second["tokens"], second["loss"], second["step_source"], second["phase"]) == (64, 0.5, "user", None)
    assert first["phase"] == "warmup"
    assert second["comm_blocked_ms"] is second["comm_source"] is None
    assert second["is_shadow"] == 0


def test_the_scripts_own_step_number_counts_on(recorder: Recorder, life: LifeDir) -> None:
    for n in (100, None, None, 7):
        recorder.steps.boundary("user", global_step=n)
    assert [(r["local_step"], r["global_step"]) for r in rows(life, STEPS)] == [(1, 100), (2, 101), (3, 102), (4, 7)]


def test_one_source_counts_until_the_script_does(recorder: Recorder, life: LifeDir) -> None:
    steps = recorder.steps
    assert steps.boundary("optimizer")
    assert not steps.boundary("ddp")
    assert steps.boundary("user")
    assert not steps.boundary("optimizer")
    assert steps.boundary("user")
    assert [r["step_source"] for r in rows(life, STEPS)] == ["optimizer", "user", "user"]
    meta = life.meta()
    assert meta is not None
    assert meta.step_source == "user"


def test_spans_of_the_main_thread_fill_the_phases_of_the_step(recorder: Recorder, life: LifeDir) -> None:
    def spend(phase: str, seconds: float) -> float:
        """The time that it took in all, in ms: what a busy machine adds is in there too."""
        begin = time.perf_counter()
        span = recorder.spans.open(phase, phase)
        inner = recorder.spans.open("inner", phase)
        time.sleep(seconds)
        recorder.spans.close(inner)
        recorder.spans.close(span)
        return (time.perf_counter() - begin) * 1000

    recorder.steps.boundary("user")
    data = spend("data", 0.01)
    forward = spend("forward", 0.02) + spend("forward", 0.02)
    other = threading.Thread(target=spend, args=("backward", 0.01))
    other.start()
    other.join()
    recorder.steps.boundary("user")
    recorder.steps.boundary("user")
    _, step, after = rows(life, STEPS)
    assert 10 <= step["data_ms"] <= data
    assert 40 <= step["forward_ms"] <= forward
    assert step["backward_ms"] is step["optimizer_ms"] is after["data_ms"] is None


def test_notes_of_a_better_source_win_for_one_step(recorder: Recorder, life: LifeDir) -> None:
    recorder.counter.watch_comm("ddp")
    recorder.counter.note(forward_ms=1.5, comm_blocked_ms=None, is_shadow=1)
    recorder.steps.boundary("ddp")
    recorder.steps.boundary("ddp")
    first, second = rows(life, STEPS)
    assert (first["forward_ms"], first["comm_blocked_ms"], first["is_shadow"]) == (1.5, None, 1)
    assert (second["forward_ms"], second["comm_blocked_ms"], second["is_shadow"]) == (None, 0.0, 0)


@pytest.mark.parametrize(("span", "phase"), [("checkpoint", "checkpoint"), ("eval", "eval"), ("compile", "warmup")])
def test_a_step_with_a_checkpoint_or_evaluation_says_so(recorder: Recorder, life: LifeDir, span: str, phase: str) -> None:
    recorder.steps.boundary("user")
    recorder.spans.close(recorder.spans.open("x", span))
    recorder.steps.boundary("user")
    held = recorder.spans.open("x", span)
    recorder.steps.boundary("user")
    recorder.steps.boundary("user")
    recorder.spans.close(held)
    recorder.steps.boundary("user")
    recorder.steps.boundary("user")
    assert [r["phase"] for r in rows(life, STEPS)] == ["warmup", phase, phase, phase, phase, None]


def test_micro_batches_are_counted(recorder: Recorder, life: LifeDir) -> None:
    for _ in range(2):
        for _ in range(4):
            recorder.counter.micro()
        recorder.steps.boundary("optimizer")
    assert [(r["micro_step"], r["micro_batches"]) for r in rows(life, STEPS)] == [(4, 4), (8, 4)]


def test_a_loss_on_a_device_is_not_read(recorder: Recorder, life: LifeDir) -> None:
    class Tensor:
        device = "cuda:0"

        def __float__(self) -> float:
            raise AssertionError("reading it would wait for the device")

    class CpuTensor:
        device = "cpu"

        def __float__(self) -> float:
            return 0.25

    recorder.steps.boundary("user", loss=Tensor())
    recorder.steps.boundary("user", loss=CpuTensor())
    recorder.steps.boundary("user", loss="bad")
    recorder.steps.boundary("user", loss=float("nan"))
    assert [r["loss"] for r in rows(life, STEPS)][:3] == [None, 0.25, None]
    assert life.errors()["step.loss"] == 2
    assert len(rows(life, STEPS)) == 4


def test_every_step_has_a_span_and_it_is_open_while_the_step_runs(recorder: Recorder, life: LifeDir) -> None:
    assert life.open_spans() == []
    recorder.steps.boundary("user")
    (running,) = life.open_spans()
    assert (running.name, running.is_main_thread) == ("train.step", True)
    inner = recorder.spans.open("forward", "forward")
    assert [s.name for s in life.open_spans()] == ["train.step", "forward"]
    recorder.spans.close(inner)
    recorder.steps.boundary("user")
    trace = rows(life, TRACE)
    assert [(r["record_type"], r["name"], r["local_step"]) for r in trace] == [
        ("span_start", "train.step", 1),
        ("span_end", "train.step", 1),
        ("span_start", "train.step", 2),
        ("span_start", "forward", 2),
        ("span_end", "forward", 2),
        ("span_end", "train.step", 2),
        ("span_start", "train.step", 3),
    ]
    step, forward = trace[2], trace[3]
    assert forward["parent_id"] == step["span_id"] == forward["trace_id"] == step["trace_id"]
    assert trace[5]["time"] - step["time"] == pytest.approx(rows(life, STEPS)[1]["step_duration_sec"] * 1e9, abs=1e6)


def test_a_users_own_step_span_replaces_the_synthesised_one(recorder: Recorder, life: LifeDir) -> None:
    recorder.steps.boundary("user")
    recorder.steps.boundary("user")
    for _ in range(2):
        own = recorder.spans.open("train.step")
        recorder.spans.close(own)
        recorder.steps.boundary("user")
    names = [(r["record_type"], r["local_step"]) for r in rows(life, TRACE)]
    assert names[-4:] == [("span_start", 3), ("span_end", 3), ("span_start", 4), ("span_end", 4)]
    assert life.open_spans() == []
    starts = [r["span_id"] for r in rows(life, TRACE) if r["record_type"] == "span_start"]
    ends = [r["span_id"] for r in rows(life, TRACE) if r["record_type"] == "span_end"]
    assert sorted(starts) == sorted(ends)


def test_a_span_closes_the_ones_left_open_inside_it(recorder: Recorder, life: LifeDir) -> None:
    outer = recorder.spans.open("outer")
    recorder.spans.open("forgotten")
    recorder.spans.close(outer)
    assert life.open_spans() == []
    assert [r["name"] for r in rows(life, TRACE) if r["record_type"] == "span_end"] == ["forgotten", "outer"]
    recorder.spans.close(outer)
    assert len(rows(life, TRACE)) == 4


def test_spans_carry_attributes_place_and_parents(recorder: Recorder, life: LifeDir) -> None:
    with recorder.spans.open("outer", attributes={"n": 1, "path": Path("x")}, location_depth=1) as outer:
        recorder.spans.event("hello", {"é": [1]}, location_depth=1)
        inner = recorder.spans.open("inner", "data")
        recorder.spans.close(inner)
    trace = rows(life, TRACE)
    assert json.loads(trace[0]["attributes"]) == {"n": 1, "path": "x"}
    assert trace[0]["location"].startswith("probe/test_steps_and_spans.py:")
    assert (trace[1]["record_type"], json.loads(trace[1]["event_attributes"])) == ("event", {"é": [1]})
    assert trace[1]["span_id"] == trace[0]["span_id"] == trace[2]["parent_id"]
    assert trace[2]["phase"] == "data"
    assert outer is not None


def test_attributes_that_do_not_fit_are_null_not_half(recorder: Recorder, life: LifeDir) -> None:
    recorder.spans.event("big", {"x": "y" * 10_000})
    assert rows(life, TRACE)[0]["event_attributes"] is None


def test_span_ids_are_unique_over_ranks_and_lives(tmp_path: Path) -> None:
    seen: set[int] = set()
    for rank in (0, 1, 1000, (1 << 20) - 1):
        for _ in range(2):
            recorder = make_recorder(tmp_path, rank=rank, world_size=1 << 20)
            for _ in range(10):
                recorder.spans.close(recorder.spans.open("x"))
            recorder.close()
            time.sleep(0.002)
    for life in discover(tmp_path, "job"):
        for row in rows(life, TRACE):
            if row["record_type"] == "span_start":
                assert row["span_id"] not in seen
                assert 0 < row["span_id"] < 2**63
                seen.add(row["span_id"])
    assert len(seen) == 80


def test_spans_of_other_threads_are_told_apart(recorder: Recorder, life: LifeDir) -> None:
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        span = recorder.spans.open("save", "checkpoint")
        go.set()
        done.wait(10)
        recorder.spans.close(span)

    thread = threading.Thread(target=work)
    thread.start()
    go.wait(10)
    (span,) = life.open_spans()
    assert (span.name, span.phase, span.is_main_thread) == ("save", "checkpoint", False)
    recorder.steps.boundary("user")
    recorder.steps.boundary("user")
    done.set()
    thread.join()
    assert [r["phase"] for r in rows(life, STEPS)] == ["warmup", None]


def test_a_checkpoint_row_has_a_hash_of_the_path_and_never_the_path(recorder: Recorder, life: LifeDir) -> None:
    recorder.steps.boundary("user", global_step=41)
    recorder.checkpoint(kind="torch.save", duration_ms=12.5, nbytes=10, path="/secret/model.pt")
    (row,) = rows(life, "python.checkpoint")
    assert (row["step"], row["kind"], row["duration_ms"], row["bytes"], row["rank"]) == (42, "torch.save", 12.5, 10, 0)
    assert len(row["path_hash"]) == 16
    assert b"secret" not in b"".join(f.read_bytes() for f in life.path.iterdir())


def test_wrong_names_of_tables_are_counted_and_rows_dropped(recorder: Recorder, life: LifeDir) -> None:
    bad: list[Any] = [
        recorder.table("python.nothing"),
        recorder.custom("python.comm_collective", {"a": int}),
        recorder.custom("NoSchema", {"a": int}),
        recorder.custom("a.b", {"_rank": int}),
        recorder.custom("a.b", {"a": list}),
        recorder.custom("a.b", {}),
        recorder.custom("global.b", {"a": int}),
    ]
    for writer in bad:
        writer.row(a=1)
        writer.write((1,))
    good = recorder.custom("a.b", {"a": int})
    assert recorder.custom("a.b", {"a": int}) is good
    recorder.custom("a.b", {"a": str}).row(a="x")
    good.row(a=1, nonsense=2)
    assert rows(life, "a.b") == [{"a": 1}]
    assert sum(v for k, v in life.errors().items() if k.startswith("table.")) == 8
    assert life.errors()["row.a.b"] == 1


def test_the_end_of_recording_ends_the_step_in_progress(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path)
    recorder.steps.boundary("user")
    recorder.close()
    life = discover(tmp_path, "job")[0]
    assert life.open_spans() == []
    assert [r["record_type"] for r in rows(life, TRACE)] == ["span_start", "span_end"] * 2
    life.close()
