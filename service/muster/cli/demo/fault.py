"""The fault of a demo: which rank, and what is done to its process."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from muster.errors import ParameterError

KINDS = ("none", "straggler", "hang", "kill")
SLOW_MS = 15.0
HINT = "Write none, straggler:RANK, hang:RANK or kill:RANK."


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` none has no rank."""

    kind: str = "none"
    rank: int | None = None

    @classmethod
    def parse(cls, text: str, ranks: int) -> Fault:
        """`none` or `KIND:RANK`. Raises ParameterError saying what would fit."""
        if text == "none":
            return cls()
        kind, colon, rank = text.partition(":")
        if kind not in KINDS or not colon or not rank.isdigit():
            raise ParameterError(f"--fault is {text!r}.", hint=HINT)
        if int(rank) >= ranks:
            raise ParameterError(f"--fault names rank {rank}; there are ranks 0 to {ranks - 1}.", hint=HINT)
        return cls(kind, int(rank))

    def slow_ms(self, rank: int) -> float:
        """What a rank takes longer per step."""
        return SLOW_MS if self.kind == "straggler" and self.rank == rank else 0.0

    def strike(self, pid: int) -> None:
        """Do to the process what this fault does while it runs."""
        if self.kind == "hang":
            os.kill(pid, signal.SIGSTOP)
        elif self.kind == "kill":
            os.kill(pid, signal.SIGKILL)

    @property
    def says(self) -> str:
        """What was done, for people."""
        return {
            "none": "nothing was injected",
            "straggler": f"rank {self.rank} takes {SLOW_MS:.0f} ms longer per step",
            "hang": f"the process of rank {self.rank} was stopped (SIGSTOP)",
            "kill": f"the process of rank {self.rank} was killed (SIGKILL)",
        }[self.kind]
