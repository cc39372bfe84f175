"""How far each output column is determined: `exact`, `float`, `approx` or `arbitrary`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from muster.sql.bind import Binder
from muster.sql.plan import Exactness, OutputColumn


def exactness(tree: exp.Query, binder: Binder) -> Sequence[OutputColumn]:
    return [OutputColumn("", "", Exactness.EXACT)]
