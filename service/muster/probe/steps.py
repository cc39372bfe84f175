"""The boundary between two steps: one row of python.torch_step_timing for the step that ended."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, time_ns
from typing import Any

from muster.probe.collectives import Errors, Rows, Who
from muster.probe.counter import StepCounter
from muster.probe.spans import Spans
from muster.tables import STEP_TIMING

USER = "user"
_COLUMNS = tuple(c.name for c in STEP_TIMING.columns)


class Steps:
    """Counts steps. One source counts: the first that calls, until the script itself does (`muster.probe.step()`), which
    then stays the only one. `source` is user, optimizer, ddp, … or None so far."""

    def __init__(
        self,
        who: Who,
        started: tuple[int, int],
        counter: StepCounter,
        spans: Spans,
        rows: Rows,
        errors: Errors,
        on_source: Callable[[], None],
    ) -> None:
        """`started`: when recording began, by `perf_counter_ns` and in ns since the epoch; the first step begins there.
        `on_source` is called when `source` has changed."""
        self._who = who
        self._begin, self._begin_ns = started
        self.counter = counter
        self._spans = spans
        self._rows = rows
        self._errors = errors
        self._on_source = on_source
        self.source: str | None = None

    @property
    def local_step(self) -> int:
        """Number of the step in progress since the process started, from 1."""
        return self.counter.local_step

    @property
    def global_step(self) -> int:
        """Number of the step in progress in the job."""
        return self.counter.global_step

    def boundary(self, source: str, *, global_step: int | None = None, tokens: int | None = None, loss: Any = None) -> bool:
        """A step has ended now, says `source`. Writes its row and begins the next. `global_step` is the number of the
        step that ended. False if another source counts the steps, or after an error."""
        if self.source != source:
            if self.source is not None and source != USER:
                return False
            self.source = source
            self._on_source()
        now, now_ns = perf_counter_ns(), time_ns()
        try:
            counter = self.counter
            if global_step is not None:
                counter.global_step = int(global_step)
            if counter.micro_step is not None:
                counter.micro_batches = counter.micro_in_step
            self._spans.step_boundary(now, now_ns, self._begin, self._begin_ns)
            self._rows.write(self._row(now, now_ns, tokens, self._number(loss)))
        except Exception as error:
            self._errors.count("step", error)
        try:
            self.counter.advance(self.counter.global_step + 1)
            self._begin, self._begin_ns = now, now_ns
            self._spans.step_begin(now, now_ns)
        except Exception as error:
            self._errors.count("step", error)
            return False
        return True

    def _row(self, now: int, now_ns: int, tokens: int | None, loss: float | None) -> tuple[Any, ...]:
        counter = self.counter
        phases = {k: v / 1e6 for k, v in counter.phase_ns.items()}
        blocked = None
        if counter.comm_source is not None and not counter.blocked_unknown:
            blocked = counter.blocked_ns / 1e6
        values: dict[str, Any] = {
            "micro_step": counter.micro_step,
            "local_step": counter.local_step,
            "global_step": counter.global_step,
            "micro_batches": counter.micro_batches,
            "rank": self._who.rank,
            "world_size": self._who.world_size,
            "role": self._who.role,
            "step_duration_sec": (now - self._begin) / 1e9,
            "data_ms": phases.get("data"),
            "forward_ms": phases.get("forward"),
            "backward_ms": phases.get("backward"),
            "optimizer_ms": phases.get("optimizer"),
            "comm_blocked_ms": blocked,
            "tokens": tokens,
            "loss": loss,
            "phase": self._phase(),
            "step_source": self.source,
            "is_shadow": 0,
            "end_ns": now_ns,
            "comm_source": counter.comm_source,
        }
        values.update(counter.notes)
        return tuple([values.get(name) for name in _COLUMNS])

    def _phase(self) -> str | None:
        seen = self.counter.phases_seen | self._spans.open_phases()
        for phase in ("checkpoint", "eval"):
            if phase in seen:
                return phase
        return "warmup" if self.counter.completed == 0 or "compile" in seen else None

    def _number(self, loss: Any) -> float | None:
        """The loss as a number. A tensor on a device is not read: that would make the trainer wait for the device."""
        if loss is None or isinstance(loss, float | int):
            return loss
        try:
            device = str(getattr(loss, "device", "cpu"))
            if device.partition(":")[0] == "cpu":
                return float(loss)
            self._errors.count("step.loss", f"loss on {device} is not read, since that would wait for it; pass a float")
        except Exception as error:
            self._errors.count("step.loss", error)
        return None
