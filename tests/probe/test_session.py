"""Recording of a whole process: by environment, by code, and where it must not or cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import muster.probe as probe
from muster.probe import SESSION
from muster.probe.reader import discover, jobs, roots
from probe.kit import rows

Script = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MUSTER_DIR", str(tmp_path))
    yield tmp_path
    probe.stop()


def finish(process: subprocess.Popen[str], seconds: float = 60) -> str:
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return out


def test_starting_twice_changes_nothing(session: Path) -> None:
    assert probe.start(job="a")
    first = probe.current()
    assert probe.start(job="b")
    assert probe.current() is first
    assert jobs(session) == ["a"]
    probe.stop()
    probe.stop()
    assert not probe.recording()
    assert probe.start(job="b")
    assert jobs(session) == ["a", "b"]


def test_every_call_does_nothing_without_a_recording() -> None:
    assert not probe.recording()
    probe.step(3, loss=1.0)
    probe.event("x", a=1)
    with probe.span("x", phase="data"), probe.collective("all_reduce", nbytes=1):
        pass
    probe.table("t.x", a=int).row(a=1)
    probe.stop()
    assert probe.current() is None


def test_an_exception_passes_through_spans_and_collectives_and_is_noted(session: Path) -> None:
    probe.start(job="a")
    with pytest.raises(KeyError), probe.span("s"), probe.collective("broadcast"):
        raise KeyError("k")
    life = discover(session, "a")[0]
    assert rows(life, "python.comm_collective")[0]["error"] == "KeyError: 'k'"
    assert rows(life, "python.trace_event")[-1]["event_attributes"] == '{"exception":"KeyError"}'


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"job": "../up"}, "must match"),
        ({"job": "a", "nonsense": 1}, "unknown identity"),
        ({"job": "a", "rank": -1}, "negative"),
    ],
)
def test_wrong_arguments_are_said_in_one_line_and_never_raised(
    session: Path, arguments: dict[str, object], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    SESSION._said = False
    assert not probe.start(**arguments)  # type: ignore[arg-type]
    assert not probe.start(**arguments)  # type: ignore[arg-type]
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert told in err


def test_a_launchers_environment_gives_the_identity(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MUSTER_JOB": "a", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
        "ROLE_NAME": "trainer", "ROLE_RANK": "5", "ROLE_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "run7",
        "TORCHELASTIC_RESTART_COUNT": "2", "MUSTER_NODE": "n1", "MUSTER_GATEWAY": "http://127.0.0.1:1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert probe.start()
    meta = discover(session, "a")[0].meta()
    assert meta is not None
    assert (meta.rank, meta.world_size, meta.local_rank, meta.local_world_size, meta.node_rank) == (5, 8, 1, 4, 1)
    assert (meta.role_name, meta.role_rank, meta.role_world_size, meta.node) == ("trainer", 5, 8, "n1")
    assert meta.generation.startswith("run7-")
    assert meta.generation.endswith(".2")
    assert not meta.generation_final
    assert meta.gateway == "http://127.0.0.1:1"


def test_names_of_attributes_and_columns_are_free(session: Path) -> None:
    probe.start(job="a")
    with probe.span("s", name="n", self="x"):
        probe.event("e", name="n")
    probe.table("t.x", name=str, self=int).row(name="n", self=1)
    life = discover(session, "a")[0]
    assert rows(life, "t.x") == [{"name": "n", "self": 1}]
    assert rows(life, "python.trace_event")[0]["attributes"] == '{"name":"n","self":"x"}'


def test_ranks_of_one_launcher_share_a_generation_and_a_restart_has_another(script: Script, tmp_path: Path) -> None:
    source = """
        import os
        import muster.probe as probe
        assert probe.start(job="j")
    """
    for rank, restart in ((0, "0"), (1, "0"), (2, "1")):
        finish(script(source, RANK=str(rank), WORLD_SIZE="3", TORCHELASTIC_RESTART_COUNT=restart))
    metas = [life.meta() for life in discover(tmp_path / "root", "j")]
    zero, one, two = (m.generation for m in metas if m is not None)
    assert zero == one
    assert two == f"{zero}.1"


def test_the_generation_becomes_final_once(session: Path) -> None:
    probe.start(job="a", generation="early")
    recorder = probe.current()
    assert recorder is not None
    recorder.set_generation("g1")
    recorder.set_generation("g2")
    meta = discover(session, "a")[0].meta()
    assert meta is not None
    assert (meta.generation, meta.generation_final) == ("g1", True)


def test_two_jobs_on_one_node_do_not_meet(script: Script, tmp_path: Path) -> None:
    source = """
        import sys, time
        import muster.probe as probe
        assert probe.start(job=sys.argv[1]), probe.SESSION.reason
        for i in range(50):
            probe.event(sys.argv[1])
            probe.step()
    """
    both = [script(source, job, RANK="0", WORLD_SIZE="1") for job in ("one", "two")]
    for process in both:
        finish(process)
    for job in ("one", "two"):
        (life,) = discover(tmp_path / "root", job)
        assert {r["name"] for r in rows(life, "python.trace_event")} == {job, "train.step"}
        assert len(rows(life, "python.torch_step_timing")) == 50


def test_workers_of_multiprocessing_record_nothing_and_do_no_harm(script: Script, tmp_path: Path) -> None:
    source = """
        import multiprocessing, sys
        import muster.probe as probe

        def work(n):
            probe.start()  # as the environment would do it
            probe.event("worker")
            probe.step()
            return probe.recording()

        if __name__ == "__main__":
            assert probe.start(job="j"), probe.SESSION.reason
            for method in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    assert pool.map(work, range(4)) == [False] * 4, method
            probe.event("parent")
            print(probe.errors())
    """
    out = finish(script(source, RANK="0", WORLD_SIZE="1", MUSTER_JOB="j"))
    assert out == "{}\n"
    (life,) = discover(tmp_path / "root", "j")
    assert [r["name"] for r in rows(life, "python.trace_event")] == ["parent"]
    assert [(r["kind"], r["code"]) for r in rows(life, "process.exit")] == [("exit", None)]


def test_a_forked_child_may_record_as_a_rank_of_its_own(script: Script, tmp_path: Path) -> None:
    source = """
        import os
        import muster.probe as probe
        assert probe.start(job="j", rank=0, world_size=2)
        child = os.fork()
        if child == 0:
            assert probe.start(job="j", rank=1, world_size=2), probe.SESSION.reason
            probe.event("child")
            probe.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        probe.event("parent")
    """
    finish(script(source))
    zero, one = discover(tmp_path / "root", "j")
    assert [r["name"] for r in rows(zero, "python.trace_event")] == ["parent"]
    assert [r["name"] for r in rows(one, "python.trace_event")] == ["child"]


def mount(path: Path, size: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(path)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    mount(path, "1m")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


TRAIN = """
    import muster.probe as probe
    print(probe.start(job="j"))
    for i in range(2000):
        with probe.span("forward", phase="forward", note="x" * 100), probe.collective("all_reduce"):
            pass
        probe.step()
    print("trained")
"""


def test_a_full_file_system_turns_recording_off_and_training_goes_on(script: Script, small: Path) -> None:
    (small / "filler").write_bytes(b"x" * (900 << 10))
    process = script(TRAIN, MUSTER_DIR=str(small))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == "False\ntrained\n"
    assert err.count("\n") == 1
    assert "not recording" in err
    assert not list(small.glob("j/rank-0/*-*"))


def test_a_file_system_that_fills_up_later_does_not_hurt_the_writer(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "small"
    mount(path, "8m")
    try:
        process = script(
            """
            import os, sys
            import muster.probe as probe
            print(probe.start(job="j"), flush=True)
            sys.stdin.readline()
            for i in range(20000):
                with probe.span("forward", phase="forward", note="x" * 100), probe.collective("all_reduce"):
                    pass
                probe.table("late.table", a=int).row(a=i)
                probe.step()
            print("trained", probe.errors())
            """,
            MUSTER_DIR=str(path),
        )
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "True\n"
        try:
            with (path / "filler").open("wb") as file:
                while True:
                    file.write(b"x" * (64 << 10))
                    file.flush()
        except OSError:
            pass
        process.stdin.close()
        process.stdin = None
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
        assert out.startswith("trained {'table.late.table':")
        life = discover(path, "j")[0]
        assert rows(life, "python.torch_step_timing")[-1]["local_step"] == 20000
        life.close()
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_recording_takes_a_tenth_of_the_free_space_at_most(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "small"
    mount(path, "16m")
    try:
        finish(script(TRAIN, MUSTER_DIR=str(path)))
        used = 16 * 1024 * 1024 - os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
        assert used < 1.8 * 1024 * 1024
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_files_stay_within_the_byte_budget_whatever_tables_come(session: Path) -> None:
    probe.start(job="a", ring_bytes=2 << 20)
    for i in range(40):
        probe.table(f"t.t{i}", a=int, b=str).row(a=i, b="x")
    used = sum(f.stat().st_blocks * 512 for f in session.rglob("*") if f.is_file())
    assert used <= (2 << 20) + 64 * 1024
    assert any(name.startswith("table.t.t") for name in probe.errors())


def test_a_directory_that_is_a_link_is_refused(script: Script, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "root").symlink_to(tmp_path / "elsewhere")
    out, err = script(TRAIN).communicate(timeout=60)
    assert out == "False\ntrained\n"
    assert "not recording" in err
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_rank_directory_that_is_a_link_is_refused(script: Script, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "root" / "j").mkdir(parents=True, mode=0o700)
    (tmp_path / "root").chmod(0o700)
    (tmp_path / "root" / "j" / "rank-0").symlink_to(tmp_path / "elsewhere")
    out, _ = script(TRAIN).communicate(timeout=60)
    assert out == "False\ntrained\n"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_directory_that_others_can_write_is_refused(script: Script, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o777)
    out, err = script(TRAIN).communicate(timeout=60)
    assert out == "False\ntrained\n"
    assert "can be written by other users" in err


def test_a_directory_of_another_user_is_refused_and_not_read(script: Script, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a directory to another user needs root")
    (tmp_path / "root").mkdir(mode=0o700)
    os.chown(tmp_path / "root", 12345, 12345)
    out, err = script(TRAIN).communicate(timeout=60)
    assert out == "False\ntrained\n"
    assert "belongs to user 12345" in err
    assert jobs(tmp_path / "root") == []


def test_files_are_private(session: Path) -> None:
    probe.start(job="a")
    for path in session.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_files_have_no_holes(session: Path) -> None:
    probe.start(job="a")
    for path in session.rglob("*/rank-0/*/*"):
        assert path.stat().st_blocks * 512 >= path.stat().st_size, path


def test_without_a_directory_given_shared_memory_comes_first() -> None:
    found = roots(None)
    assert [p.parent for p in found] == [Path("/dev/shm"), Path("/tmp")]
    assert all(p.name == f"muster-{os.geteuid()}" for p in found)


def test_the_second_root_is_used_when_the_first_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.probe.files.SHARED_MEMORY", Path("/proc/nothing"))
    monkeypatch.setattr("muster.probe.files.TEMPORARY", tmp_path)
    assert probe.start(job="a")
    try:
        assert len(discover(tmp_path / f"muster-{os.geteuid()}", "a")) == 1
        assert probe.errors() == {"start": 1}
    finally:
        probe.stop()


def test_no_thread_is_started_and_no_signal_handler_changed(script: Script) -> None:
    source = """
        import signal, threading
        before = [signal.getsignal(n) for n in signal.valid_signals()]
        import muster.probe as probe
        assert probe.start(job="j", collect="none")
        for i in range(10):
            probe.step()
        assert before == [signal.getsignal(n) for n in signal.valid_signals()]
        assert threading.active_count() == 1
        print(len(__import__("os").listdir("/proc/self/task")))
    """
    assert finish(script(source)) == "1\n"


def test_the_training_process_imports_nothing_but_the_standard_library(script: Script) -> None:
    source = """
        import sys
        import muster.probe as probe
        probe.start(job="j", collect="none")
        extra = {m.split(".")[0] for m in sys.modules} - set(sys.stdlib_module_names)
        print(sorted(m for m in extra if not m.startswith("_") and m not in ("muster", "sitecustomize")))
    """
    out = finish(script(source))
    assert not {"duckdb", "pyarrow", "pydantic", "httpx", "torch"} & set(eval(out))


def test_starting_is_fast(session: Path) -> None:
    began = time.perf_counter()
    probe.start(job="a", collect="none")
    assert time.perf_counter() - began < 0.5
    shutil.rmtree(session / "a", ignore_errors=True)


def test_a_reader_beside_a_busy_writer_sees_only_whole_rows_and_counts_the_rest(script: Script, tmp_path: Path) -> None:
    process = script(
        """
        import sys, threading, time
        import muster.probe as probe
        assert probe.start(job="j", ring_bytes=600_000, rank=0, world_size=2)
        recorder = probe.current()
        table = recorder.custom("t.n", {"a": int, "b": int, "text": str})
        log = recorder.collectives
        group = log.group("world", [0, 1])
        print("ready", flush=True)
        end = time.monotonic() + 2
        n = 0
        while time.monotonic() < end:
            for _ in range(200):
                n += 1
                table.write((n, n * 7, str(n) if n % 5 == 0 else None))
                log.end(log.begin("all_reduce", group, nbytes=n, seq=n))
            time.sleep(0.001)
        print(n, flush=True)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (life,) = discover(tmp_path / "root", "j")
    table, log = life.reader("t.n"), life.reader("python.comm_collective")
    seen, in_log, last = 0, 0, 0
    while process.poll() is None:
        flying = life.in_flight()
        assert all(b == s for b, s in zip(flying.columns["bytes"], flying.columns["seq"], strict=True))
        batch = table.read_new()
        columns = batch.columns
        for a, b, text in zip(columns["a"], columns["b"], columns["text"], strict=True):
            assert b == a * 7
            assert text in (None, str(a))
            last = max(last, a)
        seen += batch.rows
        rows_of_log = log.read_new()
        assert rows_of_log.columns["bytes"] == rows_of_log.columns["seq"]
        in_log += rows_of_log.rows
    total = int(process.stdout.read())
    seen += table.read_new().rows
    in_log += log.read_new().rows
    time.sleep(0.6)  # what is not whole by now never will be
    seen += table.read_new().rows
    in_log += log.read_new().rows
    assert seen + table.lost == total
    assert in_log + log.lost == total
    assert last <= total
    assert min(seen, in_log) > 0
    assert life.in_flight().rows == 0
    assert not [place for place in life.errors() if place.startswith("reader.")]
    life.close()
