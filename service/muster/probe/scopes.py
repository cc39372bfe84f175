"""What `with probe.span(…)` and `with probe.collective(…)` enter and leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from muster.probe.collectives import Op
from muster.probe.recorder import Recorder
from muster.probe.spans import Span

WORLD = "world"


class SpanScope:
    """A span from enter to exit. Without a recorder it does nothing."""

    __slots__ = ("_arguments", "_recorder", "_span")

    def __init__(self, recorder: Recorder | None, name: str, phase: str | None, attributes: dict[str, Any]) -> None:
        self._recorder = recorder
        self._arguments = (name, phase, attributes)
        self._span: Span | None = None

    def __enter__(self) -> None:
        if self._recorder is not None:
            name, phase, attributes = self._arguments
            self._span = self._recorder.spans.open(name, phase, attributes=attributes, location_depth=2)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._recorder is not None:
            self._recorder.spans.close(self._span, error=error)


class CollectiveScope:
    """A blocking operation from enter to exit. Without a recorder it does nothing."""

    __slots__ = ("_arguments", "_op", "_recorder")

    def __init__(
        self,
        recorder: Recorder | None,
        op: str,
        group: str,
        ranks: Sequence[int] | None,
        arguments: Mapping[str, Any],
    ) -> None:
        self._recorder = recorder
        self._arguments = (op, group, ranks, arguments)
        self._op: Op | None = None

    def __enter__(self) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        try:
            op, name, ranks, arguments = self._arguments
            if recorder.counter.comm_source is None:
                recorder.counter.watch_comm("user")
            group = recorder.collectives.world if ranks is None and name == WORLD else None
            group = group or recorder.collectives.group(name, ranks)
            self._op = recorder.collectives.begin(op, group, **arguments)
        except Exception as error:
            recorder.count_error("collective", error)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._recorder is not None:
            self._recorder.collectives.end(self._op, error=error)
