"""What watches a rank: the recorder inside the training process and the agent beside it.

    import muster.probe as probe

    probe.start(job="my-run")            # or by `muster run`, or by environment; rank and size come from the launcher
    for batch in loader:
        with probe.span("forward", phase="forward"):
            …
        with probe.collective("all_reduce", nbytes=4096):
            …
        probe.step(tokens=8192, loss=0.3)
    metrics = probe.table("my.metrics", reward=float, episode=int)
    metrics.row(reward=1.0, episode=3)

Nothing here raises, blocks or starts a thread, and without a running recording every call does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.probe.recorder import Recorder, TableWriter
from muster.probe.scopes import WORLD, CollectiveScope, SpanScope
from muster.probe.session import SESSION

__all__ = [
    "Recorder", "TableWriter", "collective", "current", "errors", "event", "recording", "span", "start", "step", "stop",
    "table",
]  # fmt: skip


def start(
    job: str | None = None,
    *,
    collect: Sequence[str] | str | None = None,
    directory: str | None = None,
    ring_bytes: int | None = None,
    **identity: Any,
) -> bool:
    """Begin to record this process. Arguments win over the environment; calling it again changes nothing.

    `job`: id of the job (MUSTER_JOB). `collect`: collectors to install (MUSTER_COLLECT, default `torch`; `none` for none).
    `directory`: where files go (MUSTER_DIR). `ring_bytes`: bytes of files per rank (MUSTER_RING_BYTES, default 8 MiB).
    `identity`: rank, world_size, local_rank, local_world_size, node_rank, role, role_name, role_rank, role_world_size,
    node, host, gateway, generation. Returns whether the process records; the reason why not is in `errors()`.
    """
    return SESSION.start({"job": job, "collect": collect, "directory": directory, "ring_bytes": ring_bytes} | identity)


def stop() -> None:
    """Stop recording. What was written stays readable."""
    SESSION.stop()


def recording() -> bool:
    """Whether this process records."""
    return SESSION.recorder is not None


def current() -> Recorder | None:
    """The recorder, for collectors; None while nothing is recorded."""
    return SESSION.recorder


def errors() -> dict[str, int]:
    """Errors that were counted so far, by place."""
    return SESSION.errors.counts()


def step(n: int | None = None, *, tokens: int | None = None, loss: Any = None) -> None:
    """Say that a training step has ended. From the first call on only these calls count steps.

    `n`: number of the step that ended, where the script knows it over restarts. `tokens`: what it worked on. `loss`: a
    number; a tensor on a device is not read, since that would wait for the device.
    """
    recorder = SESSION.recorder
    if recorder is not None:
        recorder.steps.boundary("user", global_step=n, tokens=tokens, loss=loss)


def span(name: str, /, phase: str | None = None, **attributes: Any) -> SpanScope:
    """A context manager that records what runs inside as a span. `phase`: data, forward, backward, optimizer, checkpoint,
    eval, compile or None. An exception passes through and is noted."""
    return SpanScope(SESSION.recorder, name, phase, attributes)


def event(name: str, /, **attributes: Any) -> None:
    """Record that something happened."""
    recorder = SESSION.recorder
    if recorder is not None:
        recorder.spans.event(name, attributes, location_depth=2)


def collective(
    op: str,
    *,
    group: str = WORLD,
    ranks: Sequence[int] | None = None,
    nbytes: int | None = None,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
    peer: int | None = None,
    in_splits: Sequence[int] | None = None,
    out_splits: Sequence[int] | None = None,
    seq: int | None = None,
) -> CollectiveScope:
    """A context manager that records what runs inside as one blocking collective or point-to-point operation, from this
    rank's point of view.

    `op`: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, barrier, send, recv, … `group` and `ranks`: name
    and global ranks of those that take part; the default is all. `peer`: the other side of a send or recv.
    """
    return CollectiveScope(
        SESSION.recorder, op, group, ranks,
        {
            "nbytes": nbytes, "shape": shape, "dtype": dtype, "peer": peer, "in_splits": in_splits,
            "out_splits": out_splits, "seq": seq,
        },
    )  # fmt: skip


def table(name: str, /, **columns: type) -> TableWriter:
    """Declare a table of your own: `table("my.metrics", reward=float, episode=int, tag=str, done=bool)`; then
    `.row(reward=…)` writes a row. Works before `start()` too: rows are written while the process records."""
    return _LateTable(name, columns)


class _LateTable(TableWriter):
    """A table of the script that finds the recorder of the moment at every row."""

    def __init__(self, name: str, columns: dict[str, type]) -> None:
        self._name = name
        self._columns = columns
        self._owner: Recorder | None = None
        self._writer: TableWriter | None = None

    def _current(self) -> TableWriter | None:
        recorder = SESSION.recorder
        if recorder is not self._owner:
            self._owner = recorder
            self._writer = None if recorder is None else recorder.custom(self._name, self._columns)
        return self._writer

    def write(self, row: tuple[Any, ...]) -> None:
        writer = self._current()
        if writer is not None:
            writer.write(row)

    def row(self, /, **values: Any) -> None:
        writer = self._current()
        if writer is not None:
            writer.row(**values)
