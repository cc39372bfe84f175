"""What is looked at from outside of the training processes, now and then: one module a source.

A source is opened once, by the name that the setting `sources` gives it. Whether it can work here it says by raising
`Unavailable`; then its tables are not offered, and what asks for them is `unknown`, never `pass`.
"""

from muster.probe.agent.sources.opening import NAMES, open_sources
from muster.probe.agent.sources.source import Place, Rows, Source, Target, Unavailable

__all__ = ["NAMES", "Place", "Rows", "Source", "Target", "Unavailable", "open_sources"]
