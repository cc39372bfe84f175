"""The agent beside a command: started again when it is killed, a bounded number of times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.probe.keeper import MAX_RESTARTS, AgentKeeper
from muster.probe.launch import RunOptions, agent_serves, run

AGENT = """
import fcntl, os, signal, sys, time
directory = sys.argv[sys.argv.index("--dir") + 1] + "/j"
lock = open(directory + "/agent.lock", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
blocked = sorted(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
with open(directory + "/agents", "a") as file:
    file.write(f"{os.getpid()} {blocked}\\n")
time.sleep(60)
"""


class World:
    """Agents that are children of the test, and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.serving = False
        self.can_start = True
        self.said: list[str] = []
        self.agents: list[subprocess.Popen[bytes]] = []
        self.keeper = AgentKeeper(self._start, lambda: self.serving, self.said.append, lambda: self.now)

    def _start(self) -> int | None:
        if not self.can_start:
            return None
        self.agents.append(
            subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(int(input()))"], stdin=subprocess.PIPE)
        )
        self.serving = True
        return self.agents[-1].pid

    def end_agent(self, code: int) -> None:
        """The agent ends by this exit code, or minus this signal."""
        agent = self.agents[-1]
        if code < 0:
            agent.send_signal(-code)
        else:
            assert agent.stdin is not None
            agent.stdin.write(f"{code}\n".encode())
            agent.stdin.flush()
        os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
        self.serving = False

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now += 1
            self.keeper.look()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for agent in made.agents:
        agent.kill()
        agent.wait()
        assert agent.stdin is not None
        agent.stdin.close()


def test_an_agent_that_was_killed_is_started_again_after_a_pause(world: World) -> None:
    world.keeper.begin()
    world.end_agent(-signal.SIGKILL)
    world.keeper.look()
    assert len(world.agents) == 1
    world.pass_time(2)
    assert len(world.agents) == 2
    assert world.said == ["muster: the agent is started again in 1 s: it has ended (signal 9); see agent.log"]


def test_restarts_are_bounded_and_their_pauses_grow(world: World) -> None:
    world.keeper.begin()
    for number in range(MAX_RESTARTS + 1):
        world.end_agent(-signal.SIGSEGV)
        world.pass_time(2**number)
        assert len(world.agents) == number + 1
        world.pass_time(2)
    assert len(world.agents) == MAX_RESTARTS + 1
    assert world.said[-1].startswith("muster: no agent any more: it has ended (signal 11)")
    world.pass_time(1000)
    assert len(world.agents) == MAX_RESTARTS + 1


def test_one_that_ran_long_has_made_good_the_restarts_before_it(world: World) -> None:
    world.keeper.begin()
    for _ in range(2 * MAX_RESTARTS):
        world.pass_time(1000)
        world.end_agent(-signal.SIGKILL)
        world.pass_time(3)
    assert len(world.agents) == 1 + 2 * MAX_RESTARTS


@pytest.mark.parametrize(("code", "says"), [(0, 0), (3, 1)])
def test_one_that_is_done_or_cannot_run_here_is_not_started_again(world: World, code: int, says: int) -> None:
    world.keeper.begin()
    world.end_agent(code)
    world.pass_time(1000)
    assert len(world.agents) == 1
    assert len(world.said) == says


def test_while_another_command_has_an_agent_none_is_started_but_its_end_is_noticed(world: World) -> None:
    world.serving = True
    world.keeper.begin()
    world.pass_time(100)
    assert world.agents == []
    world.serving = False
    world.pass_time(15)
    assert len(world.agents) == 1


def test_after_the_command_nothing_is_started(world: World) -> None:
    world.keeper.begin()
    world.end_agent(-signal.SIGKILL)
    world.keeper.end()
    world.pass_time(100)
    assert len(world.agents) == 1
    assert world.said == ["muster: the agent has ended (signal 9); see agent.log"]


def test_run_restarts_a_killed_agent_and_the_command_does_not_notice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(AGENT)
    root = tmp_path / "root"
    agents = root / "j" / "agents"
    command = (sys.executable, "-c", WAITER, str(agents))
    options = RunOptions(
        job="j", command=command, directory=root, bundle=False, collect="none",
        agent_command=(sys.executable, str(script)),
    )  # fmt: skip
    assert run(options, dict(os.environ)) == 0
    first, second = [line.split(" ", 1) for line in agents.read_text().splitlines()]
    os.kill(int(second[0]), signal.SIGKILL)
    _until(lambda: not agent_serves(root, "j"))
    assert first[0] != second[0]
    assert second[1] == first[1] == "[]"
    assert "started again in 1 s: it has ended (signal 9)" in capfd.readouterr().err


WAITER = """
import os, signal, sys, time
def agents():
    try:
        return open(sys.argv[1]).read().splitlines()
    except FileNotFoundError:
        return []
end = time.monotonic() + 20
while not agents() and time.monotonic() < end:
    time.sleep(0.05)
os.kill(int(agents()[0].split()[0]), signal.SIGKILL)
while len(agents()) < 2 and time.monotonic() < end:
    time.sleep(0.05)
sys.exit(0 if len(agents()) == 2 else 1)
"""


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
