"""`muster run`: children that are ranks are recorded without knowing of it; signals, codes and the bundle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.errors import ConfigError
from muster.probe.launch import RunOptions, agent_serves, environment, is_single, print_env, run
from muster.probe.lock import AGENT_LOCK, OwnerLock
from muster.probe.reader import discover
from muster.probe.sweep import sweep
from probe.kit import eventually, make_recorder, rows

TRAIN = """
import os, sys, time
steps = int(sys.argv[1])
import muster.probe
for i in range(steps):
    muster.probe.step()
print("recording", muster.probe.recording())
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.fixture
def environ() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")}


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., RunOptions]:
    def make(*command: object, **more: object) -> RunOptions:
        given = {"job": "j", "directory": tmp_path / "root", "agent": False, "bundle_dir": tmp_path / "bundle"} | more
        return RunOptions(command=tuple(str(c) for c in command), **given)  # type: ignore[arg-type]

    return make


Make = Callable[..., RunOptions]


def test_a_plain_program_is_rank_0_of_1(options: Make, train: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    assert run(options(sys.executable, train, 3), environ) == 0
    (life,) = discover(tmp_path / "root", "j")
    meta = life.meta()
    assert meta is not None
    assert (meta.rank, meta.world_size) == (0, 1)
    assert len(rows(life, "python.torch_step_timing")) == 3
    assert not (tmp_path / "bundle").exists()


LAUNCHER = """
import os, subprocess, sys
children = [
    subprocess.Popen([sys.executable, *sys.argv[1:]], env=os.environ | {"RANK": str(r), "WORLD_SIZE": "3"})
    for r in range(3)
]
sys.exit(max(c.wait() for c in children))
"""


def test_the_children_of_a_launcher_are_recorded_and_the_launcher_is_not(
    options: Make, train: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(f"#!{sys.executable}\n{LAUNCHER}")
    launcher.chmod(0o755)
    assert run(options(launcher, train, 2), environ) == 0
    lives = discover(tmp_path / "root", "j")
    assert [life.rank for life in lives] == [0, 1, 2]
    assert len({life.meta().generation for life in lives if life.meta()}) == 1  # type: ignore[union-attr]


def test_a_launcher_that_has_a_rank_itself_does_not_take_its_childs(
    options: Make, train: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(f"#!{sys.executable}\n{LAUNCHER}")
    launcher.chmod(0o755)
    assert run(options(launcher, train, 2), environ | {"RANK": "1", "WORLD_SIZE": "2"}) == 0
    lives = discover(tmp_path / "root", "j")
    assert [(life.rank, len(rows(life, "python.torch_step_timing"))) for life in lives] == [(0, 2), (1, 2), (2, 2)]


def test_a_command_without_a_rank_is_told_that_nothing_was_recorded(
    options: Make, train: Path, environ: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(options("bash", "-c", f"{sys.executable} {train} 2"), environ) == 0
    assert "nothing was recorded" in capfd.readouterr().err
    assert run(options(sys.executable, train, 2), environ) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_the_exit_code_is_the_commands(options: Make, code: int, environ: dict[str, str]) -> None:
    assert run(options(sys.executable, "-c", f"raise SystemExit({code})"), environ) == code


def test_a_command_that_cannot_be_started_is_a_clear_error(options: Make, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cannot run '/nowhere/program'"):
        run(options("/nowhere/program"), environ)
    with pytest.raises(ConfigError, match="no command"):
        run(options(), environ)
    with pytest.raises(ConfigError, match="job id"):
        run(options("true", job="a/b"), environ)


RUN = """
import sys
from pathlib import Path
from muster.probe.launch import RunOptions, exit_with, run
root, *command = sys.argv[1:]
exit_with(run(RunOptions(job="j", command=tuple(command), directory=Path(root) / "root", agent=False,
                         bundle_dir=Path(root) / "bundle")))
"""


@pytest.fixture
def muster_run(tmp_path: Path, environ: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    script = tmp_path / "run.py"
    script.write_text(RUN)
    started: list[subprocess.Popen[str]] = []

    def start(source: str) -> subprocess.Popen[str]:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(source))
        started.append(
            subprocess.Popen(
                [sys.executable, str(script), str(tmp_path), sys.executable, str(program)],
                env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            )
        )  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_are_handed_on_once(muster_run: Callable[..., subprocess.Popen[str]], number: int) -> None:
    process = muster_run(
        f"""
        import signal, sys, time
        got = []
        signal.signal({int(number)}, lambda n, f: got.append(n))
        print("ready", flush=True)
        end = time.monotonic() + 20
        while not got and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)
        print(got, flush=True)
        sys.exit(len(got))
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert out == f"[{int(number)}]\n"
    assert process.returncode == 1


def test_death_by_a_signal_is_passed_on_as_such(muster_run: Callable[..., subprocess.Popen[str]]) -> None:
    process = muster_run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    process = muster_run("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM


def test_an_abnormal_exit_leaves_a_bundle_and_says_so_in_one_line(
    muster_run: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = muster_run(
        """
        import muster.probe as probe, os, signal
        probe.step(5)
        with probe.collective("all_gather"):
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    _, err = process.communicate(timeout=30)
    told = [line for line in err.splitlines() if line.startswith("muster:")]
    assert told == [f"muster: the command ended with signal 9; what was recorded is in {tmp_path / 'bundle'}"]
    job = json.loads((tmp_path / "bundle" / "job.json").read_text())
    assert (job["format"], job["job"], job["world_size"], job["exit"]["signal"]) == (1, "j", 1, 9)
    (entry,) = job["roster"]
    assert (entry["rank"], entry["alive"], entry["generation"]) == (0, False, job["generation"])
    shutil.copytree(tmp_path / "bundle" / "rings", tmp_path / "copy" / "j")
    for directory in [tmp_path / "copy", *(tmp_path / "copy").rglob("*")]:
        if directory.is_dir():
            directory.chmod(0o700)
    (life,) = discover(tmp_path / "copy", "j")
    assert rows(life, "python.torch_step_timing")[0]["global_step"] == 5
    assert life.in_flight().columns["op"] == ["all_gather"]


def test_a_bundle_holds_what_this_run_recorded_and_not_an_earlier_one(
    options: Make, train: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    assert run(options(sys.executable, train, 2), environ) == 0
    assert run(options(sys.executable, "-c", "import sys; sys.exit(4)", job="j"), environ) == 4
    job = json.loads((tmp_path / "bundle" / "job.json").read_text())
    assert len(job["roster"]) == 1
    assert job["roster"][0]["exit"]["code"] == 4


def test_a_sitecustomize_that_was_there_still_runs(
    options: Make, train: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(
        f"import pathlib, os; pathlib.Path({str(tmp_path / 'ran')!r}).write_text(__name__ + ' ' + __file__)"
    )
    for more in ({}, {"RANK": "0", "WORLD_SIZE": "1"}):
        run(options(sys.executable, train, 1), environ | {"PYTHONPATH": str(other)} | more)
        assert (tmp_path / "ran").read_text() == f"sitecustomize {other / 'sitecustomize.py'}"
        (tmp_path / "ran").unlink()
    assert len(discover(tmp_path / "root", "j")) == 2


def test_python_processes_that_are_no_ranks_stay_light_and_silent(
    options: Make, tmp_path: Path, environ: dict[str, str]
) -> None:
    added = environment(options("torchrun", "x.py"))
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print([m for m in sys.modules if m.startswith('muster')])"],
        env=environ | added, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "[]\n"
    assert done.stderr == ""
    assert not (tmp_path / "root").exists()


def test_a_rank_whose_python_does_not_have_muster_is_recorded_all_the_same(
    options: Make, tmp_path: Path, environ: dict[str, str]
) -> None:
    added = environment(options("torchrun", "x.py")) | {"RANK": "2", "WORLD_SIZE": "4"}
    bare = [sys.executable, "-S", "-c"]  # without site-packages; so sitecustomize must be imported by hand
    done = subprocess.run(
        [*bare, "import sitecustomize, muster.probe as p; p.step(); print(p.recording(), p.SESSION.reason)"],
        env=environ | added, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "True None\n", done.stderr
    (life,) = discover(tmp_path / "root", "j")
    assert len(rows(life, "python.torch_step_timing")) == 1


@pytest.mark.parametrize(
    ("command", "single"),
    [
        (["python", "train.py"], True),
        (["/usr/bin/python3.11", "-m", "pkg.train"], True),
        (["python", "-m", "torch.distributed.run", "x.py"], False),
        (["torchrun", "x.py"], False),
        (["bash", "run.sh"], False),
        ([], False),
    ],
)
def test_what_counts_as_one_program(command: list[str], single: bool) -> None:
    assert is_single(command) is single


def test_the_environment_can_be_printed_for_a_shell(options: Make) -> None:
    text = print_env(options(job="my-job", gateway="http://gw:1", node="n 1"), {"PYTHONPATH": "/a"})
    assert "export MUSTER_JOB=my-job\n" in text
    assert "export MUSTER_NODE='n 1'\n" in text
    assert "export MUSTER_GATEWAY=http://gw:1\n" in text
    assert ":/a\n" in text
    assert "RANK" not in text


def test_an_agent_is_started_in_a_session_of_its_own_without_rank_and_token_in_sight(
    options: Make, tmp_path: Path, environ: dict[str, str]
) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import json, os, sys\n"
        "print(json.dumps({'argv': sys.argv[1:], 'sid': os.getsid(0), 'pid': os.getpid(),"
        " 'env': {k: v for k, v in os.environ.items() if 'RANK' in k or k.startswith(('MUSTER', 'PYTHONPATH'))}}))\n"
    )
    run(
        options(
            sys.executable, "-c", "pass", agent=True, agent_command=(sys.executable, str(agent)), gateway="http://g:1",
            token="secret", node="n1", listen="127.0.0.1:0",
        ),
        environ | {"RANK": "0", "WORLD_SIZE": "1"},
    )  # fmt: skip
    log = tmp_path / "root" / "j" / "agent.log"
    seen = json.loads(eventually(log.read_text))
    root = str(tmp_path / "root")
    assert seen["argv"] == [
        "--job", "j", "--dir", root, "--gateway", "http://g:1", "--node", "n1", "--listen", "127.0.0.1:0",
    ]  # fmt: skip
    assert seen["sid"] == seen["pid"]
    assert seen["env"] == {"MUSTER_TOKEN": "secret"}


def test_no_second_agent_is_started(options: Make, tmp_path: Path, environ: dict[str, str]) -> None:
    job = tmp_path / "root" / "j"
    job.mkdir(parents=True)
    (tmp_path / "root").chmod(0o700)
    directory = os.open(job, os.O_RDONLY)
    held = OwnerLock.acquire(directory, "agent", AGENT_LOCK)
    assert held is not None
    assert agent_serves(tmp_path / "root", "j")
    run(options(sys.executable, "-c", "pass", agent=True, agent_command=("/nowhere/agent",)), environ)
    assert not (job / "agent.log").exists()
    held.release()
    os.close(directory)
    assert not agent_serves(tmp_path / "root", "j")


def test_training_goes_on_without_an_agent(
    options: Make, environ: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(options(sys.executable, "-c", "print(1)", agent=True, agent_command=("/nowhere/agent",)), environ) == 0
    out, err = capfd.readouterr()
    assert out == "1\n"
    assert err.startswith("muster: no agent started")


def test_files_of_jobs_that_ended_long_ago_are_removed_and_no_others(tmp_path: Path) -> None:
    make_recorder(tmp_path, job="old").close()
    make_recorder(tmp_path, job="kept").close()
    running = make_recorder(tmp_path, job="running")
    time.sleep(1.1)
    fresh = make_recorder(tmp_path, job="fresh")
    fresh.close()
    assert sweep(tmp_path, 1.0, keep="kept") == ["old"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fresh", "kept", "running"]
    running.close()


def test_a_long_run_that_ended_just_now_is_not_old(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path, job="long")
    time.sleep(1.2)
    recorder.steps.boundary("user")
    recorder.close()
    assert sweep(tmp_path, 1.0, keep="") == []
