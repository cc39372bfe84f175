"""Keeps an agent running beside a command: one that was killed is started again, a few times, with growing pauses."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

MAX_RESTARTS = 5
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
HEALTHY_S = 600.0
"""An agent that ran this long has made good the restarts before it."""
STARTED_S = 10.0
"""One that ends by an exit code sooner cannot run here (a wrong option, no address): starting it again would not help."""
_LOOK_S = 10.0


class AgentKeeper:
    """Looks after the agent of one job on this node. No method raises, waits, or touches any other process than the agent
    that it started itself."""

    def __init__(
        self,
        start: Callable[[], int | None],
        serves: Callable[[], bool],
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start`: start an agent, return its pid, None where that failed. `serves`: whether any agent serves the job."""
        self._start = start
        self._serves = serves
        self._say = say
        self._clock = clock
        self._pid: int | None = None
        self._started = clock()
        self._restarts = 0
        self._due: float | None = None
        self._look_at = clock()
        self._over = False

    def begin(self) -> None:
        """Start an agent unless one serves already."""
        if not self._serves():
            self._launch()
            self._over = self._pid is None  # said by whoever tried

    def look(self) -> None:
        """To be called about every second: notes an end, and starts an agent once its pause is over."""
        now = self._clock()
        if self._over:
            return
        if self._pid is not None:
            self._reap(now)
        elif self._due is not None:
            if now >= self._due:
                self._due = None
                if not self._serves():
                    self._launch()
                    if self._pid is None:
                        self._again(now, "it could not be started")
        elif now >= self._look_at:  # the agent of another command served so far
            self._look_at = now + _LOOK_S
            if not self._serves():
                self._due = now + FIRST_PAUSE_S  # that command may be about to start one itself

    def end(self) -> None:
        """The command has ended: the agent goes on by itself. Says so if nobody serves what was recorded."""
        if self._pid is not None and not self._over:
            code = _ended(self._pid)
            if code:
                self._say(f"muster: the agent has ended ({_how(code)}); see agent.log")
        self._over = True

    def _launch(self) -> None:
        self._pid = self._start()
        self._started = self._clock()

    def _reap(self, now: float) -> None:
        assert self._pid is not None
        code = _ended(self._pid)
        if code is None:
            return
        self._pid = None
        ran = now - self._started
        if self._serves():  # another command was first
            self._look_at = now + _LOOK_S
        elif code == 0:
            self._over = True
        elif code > 0 and ran < STARTED_S:
            self._over = True
            self._say(f"muster: the agent has ended ({_how(code)}); see agent.log")
        else:
            if ran >= HEALTHY_S:
                self._restarts = 0
            self._again(now, f"it has ended ({_how(code)})")

    def _again(self, now: float, why: str) -> None:
        if self._restarts >= MAX_RESTARTS:
            self._over = True
            self._say(f"muster: no agent any more: {why}, after {self._restarts} restarts; see agent.log")
            return
        pause = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**self._restarts)
        self._restarts += 1
        self._due = now + pause
        self._say(f"muster: the agent is started again in {pause:.0f} s: {why}; see agent.log")


def _ended(pid: int) -> int | None:
    """How a child ended: its exit code, or minus its signal; None while it runs. One that was reaped by others counts as
    ended by itself."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if ended else None


def _how(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {-code}"
