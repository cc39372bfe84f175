"""Liveness: the owner lock goes with the process, and nothing but the process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.probe.lock import AGENT_LOCK, LockProbe, OwnerLock
from muster.probe.reader import LifeDir, discover
from probe.kit import eventually, make_recorder, rows

Script = Callable[..., "subprocess.Popen[str]"]

HOLD = """
    import sys, time
    import muster.probe as probe
    assert probe.start(job="j"), probe.SESSION.reason
    with probe.collective("all_reduce", nbytes=8):
        probe.event("inside")
        print("ready", flush=True)
        time.sleep(float(sys.argv[1]))
"""


def test_a_killed_process_frees_its_lock_and_leaves_its_rows_and_its_operation_in_flight(
    script: Script, tmp_path: Path
) -> None:
    process = script(HOLD, "60", RANK="3", WORLD_SIZE="4")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    life = discover(tmp_path / "root", "j")[0]
    assert life.alive()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    assert not life.alive()
    meta = life.meta()
    assert meta is not None
    assert (meta.rank, meta.world_size, meta.pid) == (3, 4, process.pid)
    assert rows(life, "python.trace_event")[0]["name"] == "inside"
    assert life.in_flight().columns["op"] == ["all_reduce"]
    assert rows(life, "process.exit") == []
    life.close()


def test_the_holder_can_look_at_its_own_lock_without_losing_it(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path)
    life = discover(tmp_path, "job")[0]
    for _ in range(3):
        assert life.alive()
    life.close()
    child = os.fork()
    if child == 0:
        os._exit(0 if discover(tmp_path, "job")[0].alive() else 1)
    assert os.waitpid(child, 0)[1] == 0
    recorder.close()
    assert not life.alive()


def test_the_same_rank_is_recorded_once(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path)
    with pytest.raises(OSError, match="another process records rank 0"):
        make_recorder(tmp_path)
    recorder.close()
    make_recorder(tmp_path).close()


def test_an_older_life_is_not_alive_when_a_newer_one_holds_the_lock(tmp_path: Path) -> None:
    make_recorder(tmp_path).close()
    recorder = make_recorder(tmp_path)
    lives = discover(tmp_path, "job")
    assert [life.alive() for life in lives] == [False, True]
    recorder.close()


def test_old_lives_are_removed_but_the_one_before_is_kept(tmp_path: Path) -> None:
    for _ in range(4):
        make_recorder(tmp_path).close()
    assert len(discover(tmp_path, "job")) == 2


def test_a_parents_lock_survives_the_fork_and_exit_of_children(script: Script, tmp_path: Path) -> None:
    process = script(
        """
        import os, sys
        import muster.probe as probe
        assert probe.start(job="j")
        for _ in range(3):
            child = os.fork()
            if child == 0:
                assert not probe.recording()
                probe.event("child")
                with probe.span("child"), probe.collective("all_reduce"):
                    probe.step()
                probe.table("t.x", a=int).row(a=1)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        probe.event("parent")
        print("ready", flush=True)
        sys.stdin.readline()
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    life = discover(tmp_path / "root", "j")[0]
    assert life.alive()
    assert [r["name"] for r in rows(life, "python.trace_event")] == ["parent"]
    assert rows(life, "python.comm_collective") == []
    assert rows(life, "python.torch_step_timing") == []
    assert rows(life, "process.exit") == []
    assert life.open_spans() == []
    process.kill()
    process.communicate(timeout=10)
    life.close()


def test_an_agents_lock_is_seen_the_same_way(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    held = OwnerLock.acquire(directory, "agent", AGENT_LOCK)
    assert held is not None
    assert LockProbe(tmp_path / AGENT_LOCK).holder() == "agent"
    held.release()
    probe = LockProbe(tmp_path / AGENT_LOCK)
    assert probe.holder() is None
    probe.close()
    os.close(directory)


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    rank = tmp_path / "root" / "job" / "rank-0"
    rank.mkdir(parents=True, mode=0o700)
    (rank / "owner.lock").symlink_to(target)
    with pytest.raises(OSError, match=r"Too many levels|symbolic"):
        make_recorder(tmp_path / "root")
    assert target.read_text() == "content"


def test_a_life_without_a_lock_file_is_dead_and_counted(tmp_path: Path) -> None:
    make_recorder(tmp_path).close()
    life = discover(tmp_path, "job")[0]
    (life.path.parent / "owner.lock").unlink()
    assert not life.alive()
    assert life.errors()["reader.lock"] == 1


def test_the_lock_of_a_process_that_just_started_is_seen_at_once(script: Script, tmp_path: Path) -> None:
    process = script(HOLD, "60")

    def seen() -> LifeDir | None:
        lives = discover(tmp_path / "root", "j")
        return lives[0] if lives and lives[0].meta() is not None else None

    life = eventually(seen)
    assert life.alive()
    process.kill()
    process.communicate(timeout=10)
