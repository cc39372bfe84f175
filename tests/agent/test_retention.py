"""What is kept: by rows and by bytes, in chunks as they came."""

from __future__ import annotations

from muster.probe.agent.retention import Kept


def test_within_both_bounds_and_a_quarter_more_nothing_goes() -> None:
    kept = Kept()
    kept.add(125, 1250)
    assert kept.surplus(100, 10_000) == 0
    assert kept.surplus(1000, 1000) == 0


def test_rows_bound_what_is_kept() -> None:
    kept = Kept()
    kept.add(100, 1000)
    kept.add(100, 1000)
    assert kept.surplus(80, 1 << 20) == 120
    assert kept.drop(120) == 120
    assert (kept.rows, kept.bytes, kept.taken) == (80, 800, 200)


def test_bytes_bound_what_is_kept_and_wide_rows_do_not_cost_the_narrow_ones_after_them() -> None:
    kept = Kept()
    kept.add(10, 10_000)
    kept.add(100, 1000)
    assert kept.surplus(1000, 2000) == 9
    assert kept.drop(9) == 9
    assert (kept.rows, kept.bytes) == (101, 2000)
    kept.add(1, 5000)
    assert kept.surplus(1000, 2000) == 102
    assert kept.drop(102) == 102 + 9
    assert (kept.rows, kept.bytes) == (0, 0)
