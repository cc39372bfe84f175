"""The recorder of one process: its tables, its collective log, its spans and steps. Nothing here raises."""

from __future__ import annotations

from typing import Any

from muster.probe.collectives import CollectiveLog
from muster.probe.spans import Spans
from muster.probe.steps import Steps
from muster.tables import Table


class TableWriter:
    """Writes rows of one table."""

    table: Table

    def write(self, row: tuple[Any, ...]) -> None:
        """Write one row: one value per column, in the table's column order; None is NULL. Never raises: what cannot be
        stored is NULL or dropped, and counted."""
        raise NotImplementedError


class Recorder:
    """What collectors get. `active` is False after `stop()`, and in a forked child: then hooks must do nothing but call
    through. All parts are always there and never raise."""

    active: bool
    collectives: CollectiveLog
    spans: Spans
    steps: Steps

    def table(self, full_name: str) -> TableWriter:
        """The writer of a table of the registry, made (with its ring) when first asked for."""
        raise NotImplementedError

    def custom(self, full_name: str, columns: dict[str, type]) -> TableWriter:
        """The writer of a table of the script's own; column types int, float, str, bool."""
        raise NotImplementedError

    def set_generation(self, generation: str) -> None:
        """The process group is up and this is the id that all ranks share: final from now on."""
        raise NotImplementedError

    def set_role(self, role: str) -> None:
        """The parallel key of this rank, such as dp=2,pp=1,tp=0."""
        raise NotImplementedError

    def checkpoint(
        self, *, kind: str, duration_ms: float, nbytes: int | None = None, path: str | None = None, step: int | None = None
    ) -> None:
        """Write a row of python.checkpoint. The path is hashed, never kept."""
        raise NotImplementedError

    def count_error(self, where: str, error: BaseException | str) -> None:
        """Count an error of a collector; the last message per place is kept and shown by the agent."""
        raise NotImplementedError
