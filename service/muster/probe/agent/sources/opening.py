"""Which sources there are, and how they are opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from muster.probe.agent.sources.source import Place, Source, Unavailable

_OPENERS: Mapping[str, Callable[[Place], Source]] = {}
NAMES = tuple(_OPENERS)
"""What the setting `sources` may name."""


def open_sources(
    names: Sequence[str], place: Place, openers: Mapping[str, Callable[[Place], Source]] = _OPENERS
) -> tuple[list[Source], dict[str, str]]:
    """The sources that work here, and of the others why they do not."""
    found: list[Source] = []
    reasons: dict[str, str] = {}
    for name in names:
        try:
            found.append(openers[name](place))
        except Unavailable as error:
            reasons[name] = str(error)
    return found, reasons
