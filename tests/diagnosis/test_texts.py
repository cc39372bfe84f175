"""Every text in both languages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import dead, finished, hanging, running, slowed, steady
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.diagnosis.report import health_text
from muster.diagnosis.schema import LANGS
from muster.diagnosis.template import fields, render, seconds
from muster.diagnosis.texts import _PHASE, _STATUS, _WORDS, one_line, phase_name, status_name
from muster.model import Kind, Phase, Status
from muster.wording import number_list

SAMPLES: dict[str, Any] = {"ranks": [3, 4, 5], "victims": [0], "hosts": ["n0"], "later": [], "minority": [1]}


def test_every_message_renders_in_both_languages(catalogue: DiagnosisCatalogue) -> None:
    for loaded in catalogue:
        for finding in loaded.diagnosis.findings:
            both = []
            for lang in LANGS:
                text = finding.message.of(lang)
                row = {name: SAMPLES.get(name, 12.5) for name, _ in fields(text)}
                message = render(text, row)
                assert "{" not in message
                assert "\n" not in one_line(message)
                both.append(message)
            assert both[0] != both[1], finding.name
            # words that SQL chooses stand in a column for each language: why and why_zh
            names = [{n.removesuffix(f"_{lang}") for n, _ in fields(finding.message.of(lang))} for lang in LANGS]
            assert names[0] == names[1], f"{finding.name}: both languages tell the same"


def test_every_other_text_is_translated(catalogue: DiagnosisCatalogue) -> None:
    for loaded in catalogue:
        d = loaded.diagnosis
        texts = [d.title, d.asks, *d.gates.values(), *(s.doc for s in d.steps), *(p.doc for p in d.parameters.values())]
        texts += [c.title for c in d.checks]
        for text in texts:
            assert text.en != text.zh
            assert any("\u4e00" <= c <= "\u9fff" for c in text.zh), text.zh
            assert not any("\u4e00" <= c <= "\u9fff" for c in text.en), text.en


def test_fixed_texts_exist_in_both_languages() -> None:
    assert _WORDS["en"].keys() == _WORDS["zh"].keys()
    for lang in LANGS:
        assert set(_STATUS[lang]) == set(Status)
        assert set(_PHASE[lang]) == set(Phase)
        assert all(status_name(lang, s) for s in Status)
        assert all(phase_name(lang, p) for p in Phase)


@pytest.mark.parametrize("lang", LANGS)
def test_the_summary_is_one_line_that_names_the_culprit(evaluate: Evaluate, lang: str) -> None:
    history = running(own=slowed(steady(), [2], 15))
    history.down = {0}
    e = evaluate(history, lang=lang)
    assert "\n" not in e.verdict.summary
    assert "rank 2" in e.verdict.summary
    assert len(e.verdict.summary) <= 400
    assert e.lang == lang


@pytest.mark.parametrize("lang", LANGS)
def test_the_report_for_a_terminal_is_in_the_language_asked_for(evaluate: Evaluate, lang: str) -> None:
    for change in ("hang", "kill", "finish", "node", "start", "none"):
        history = running(steps=0 if change == "start" else 60)
        if change == "hang":
            hanging(history, 3, 20)
        elif change == "kill":
            dead(history, 3)
        elif change == "finish":
            finished(history, range(6))
        elif change == "node":
            history.down = {1}
        text = health_text(evaluate(history, lang=lang))
        assert text.endswith("\n")
        assert "{" not in text
        has_chinese = any("\u4e00" <= c <= "\u9fff" for c in text)
        assert has_chinese == (lang == "zh")


def test_texts_from_outside_cannot_break_a_line_or_colour_a_terminal(evaluate: Evaluate) -> None:
    history = running()
    dead(history, 3, exit_kind="exception", exit_signal=None, exit_message="boom\n\x1b[31mFAIL\r" + "x" * 5000)
    e = evaluate(history)
    text = health_text(e)
    assert "\x1b" not in text
    assert "\r" not in text
    assert len(e.findings[0].message) <= 600
    assert len(e.verdict.summary) <= 400


def test_ranks_of_a_finding_about_coverage_are_not_called_culprits(evaluate: Evaluate) -> None:
    history = running()
    hanging(history, 3, 20)
    e = evaluate(history)
    blamed = next(f for f in e.findings if f.ranks)
    assert "culprits: 3" in health_text(e)
    about = replace(blamed, kind=Kind.COVERAGE)
    text = health_text(replace(e, verdict=replace(e.verdict, findings=(about,))))
    assert "culprits" not in text
    assert "ranks: 3" in text


def test_an_unknown_column_in_a_template_fails() -> None:
    with pytest.raises(KeyError):
        render("{nothing}", {"something": 1})


@pytest.mark.parametrize("text", ["{a.b}", "{a[0]}", "{0}", "{}", "{a!r}", "{a:x9}"])
def test_a_template_reads_columns_and_nothing_else(text: str) -> None:
    with pytest.raises(ValueError):
        fields(text)


@pytest.mark.parametrize(
    ("template", "value", "text"),
    [
        ("{v}", [0, 3, 4, 5, 7], "0, 3-5, 7"), ("{v}", [], "-"), ("{v}", ["n0", None], "n0"), ("{v}", None, "?"),
        ("{v}", 1234567, "1234567"), ("{v}", 0.08765, "0.0877"), ("{v:pct}", 0.328, "32.8 %"), ("{v:x}", 1.746, "1.75"),
        ("{v:ms}", 34.92, "34.9 ms"), ("{v:ms}", 34920.0, "34.9 s"), ("{v:s}", 0.0205, "20.5 ms"), ("{v:s}", 70, "70 s"),
        ("{v:s}", 1800, "30 min"), ("{v:s}", 86400, "24 h"), ("{v}", float("nan"), "nan"), ("{v}", 0.0, "0"),
    ],
)  # fmt: skip
def test_values_are_written_for_people(template: str, value: object, text: str) -> None:
    assert render(template, {"v": value}) == text


def test_lists_of_ranks_are_short() -> None:
    assert number_list(list(range(1000))) == "0-999"
    assert number_list([2, 1]) == "1, 2"
    assert seconds(-0.5) == "-500 ms"
