"""The fuzzer itself: it draws what its seed says, and a few of its draws hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz.check import Checker, Verdict
from fuzz.mutate import Mutator

DRAWS = 120


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    made = Checker()
    yield made
    made.close()


def test_a_seed_says_what_is_drawn() -> None:
    one, same, other = Mutator(1, drawn=20), Mutator(1, drawn=20), Mutator(2, drawn=20)
    first = [one.draw() for _ in range(50)]
    assert first == [same.draw() for _ in range(50)]
    assert first != [other.draw() for _ in range(50)]


@pytest.mark.timeout(300)
def test_draws_are_planned_or_refused(checker: Checker) -> None:
    mutator = Mutator(7, drawn=100)
    outcomes = set()
    for _ in range(DRAWS):
        sql = mutator.draw()
        verdict = checker.check(sql)
        assert not verdict.findings, (sql, verdict)
        outcomes.add(verdict.outcome)
    assert {"planned", "sql_bind", "sql_syntax"} <= outcomes


@pytest.mark.parametrize("failure", [RuntimeError("broken"), MemoryError(), RecursionError()])
def test_a_crash_is_a_finding(checker: Checker, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr("fuzz.check.guard", broken)
    verdict: Verdict = checker.check("SELECT 1 FROM process.rank")
    assert any(kind.startswith(f"guard {type(failure).__name__}") for kind, _ in verdict.findings)
