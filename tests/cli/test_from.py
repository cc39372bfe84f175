"""`--from DIR`: every command that reads answers from a bundle as it does from the gateway; record and import make them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bundle.conftest import bundle, ended
from bundle.live import LiveJob, sorted_rows
from muster.cli.app import build, run_cli

__all__ = ["bundle", "ended"]
SQL = "SELECT _rank, count(*) AS n FROM python.comm_collective GROUP BY 1 ORDER BY 1"
READING = {"health", "query", "explain", "jobs", "nodes"}
COMMANDS = [
    ["jobs", "--json"],
    ["jobs", "j", "--json"],
    ["jobs", "j", "--tables", "--json"],
    ["nodes", "j", "--json"],
    ["query", "j", SQL, "--json"],
    ["explain", "j", SQL, "--json"],
    ["health", "j", "--deadline", "60", "--json"],
]


def keys(value: object) -> object:
    """The shape of JSON: names, without values."""
    if isinstance(value, dict):
        return {k: keys(v) for k, v in value.items()}
    return [keys(v) for v in value[:1]] if isinstance(value, list) else None


def test_every_command_that_takes_a_gateway_to_read_takes_a_bundle() -> None:
    found = set()
    for command in build().registered_commands:
        assert command.callback is not None
        names = inspect.signature(command.callback).parameters
        if "from_" in names:
            found.add(command.name)
        else:
            assert "gateway" not in names or command.name in ("run", "record", "agent"), command.name
    assert found == READING


@pytest.mark.parametrize("words", COMMANDS, ids=lambda w: " ".join(x for x in w if x != SQL))
def test_the_answer_has_the_form_and_the_exit_code_of_the_gateways(
    ended: LiveJob, bundle: Path, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("structlog.get_logger", lambda *a, **k: _Quiet())
    there = run_cli([*words, "--gateway", ended.url])
    live = json.loads(_json(capsys.readouterr().out))
    here = run_cli([*words, "--from", str(bundle)])
    out = capsys.readouterr()
    offline = json.loads(out.out)
    assert out.err == ""
    assert here == there
    assert keys(offline) == keys(live)
    if words[0] == "query":
        assert sorted_rows(offline["rows"]) == sorted_rows(live["rows"])
    if words[0] == "health":
        assert offline["status"] == live["status"]
    without_job = [w for w in words if w != "j"]
    assert run_cli([*without_job, "--from", str(bundle)]) == here


class _Quiet:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *a, **k: None


def _json(text: str) -> str:
    """The output without log lines of the gateway, which runs in this process too."""
    lines = [line for line in text.splitlines() if "[info" not in line and "[warning" not in line]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "words",
    [["jobs"], ["jobs", "j"], ["jobs", "--tables"], ["nodes"], ["query", SQL], ["explain", SQL], ["health"]],
    ids=lambda w: w[0],
)
def test_people_read_it_too(bundle: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([*words, "--from", str(bundle)]) in (0, 1, 3)
    out = capsys.readouterr().out
    assert out.strip()
    assert "Traceback" not in out


def test_ages_are_told_as_of_the_recording(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((bundle / "job.json").read_text())
    assert run_cli(["nodes", "--from", str(bundle)]) == 0
    assert manifest["nodes"][0]["node"] in capsys.readouterr().out
    manifest["recorded_at"] = "2030-01-01T00:00:00Z"
    for node in manifest["nodes"]:
        node["last_seen"] = "2029-12-31T23:59:48Z"
    older = bundle.parent / "older"
    older.mkdir()
    (older / "job.json").write_text(json.dumps(manifest))
    assert run_cli(["nodes", "--from", str(older)]) == 0
    assert capsys.readouterr().out.count("12 s ago") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["health", "other", "--from"], "Leave JOB out"),
        (["health", "--watch", "1", "--from"], "--watch"),
        (["query", "a", "b", "c", "--from"], "quotes"),
        (["query", "SELECT nope", "--from"], "nope"),
        (["health", "-d", "nope", "--from"], "nope"),
        (["health", "-p", "step_window=x", "--from"], "step_window"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_is_wrong_is_said_and_exits_3(
    bundle: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli([*words, str(bundle)]) == 3
    assert said in capsys.readouterr().err


def test_a_job_or_a_bundle_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["health"], ["nodes"], ["jobs", "--tables"], ["query", "SELECT 1"]):
        assert run_cli(words) == 3
        assert "--from DIR" in capsys.readouterr().err
    assert run_cli(["health", "j", "--queries", "."]) == 3
    assert "--from" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["record", "import"])
def test_the_commands_that_make_bundles_have_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([command, "--help"]) == 0
    assert "--out" in capsys.readouterr().out


def test_record_then_ask_by_the_command_line(ended: LiveJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "b"
    agents = [w for a in ended.agents for w in ("--agent", a.addr)]
    assert run_cli(["record", "j", "--out", str(out), *agents]) == 0
    assert f"muster health --from {out}" in capsys.readouterr().out
    assert run_cli(["record", "j", "--out", str(tmp_path / "c"), "--max-rows", "3", "--json", *agents]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["complete"] is False
    assert any("newest 3 rows" in n for n in said["notes"])
    assert run_cli(["record", "j", "--out", str(out), *agents]) == 3
    assert "--out" in capsys.readouterr().err
    assert run_cli(["import", str(out), "--out", str(tmp_path / "d")]) == 0
    assert run_cli(["import", str(tmp_path / "nothing"), "--out", str(tmp_path / "e")]) == 3
    assert run_cli(["import", str(out), "--out", str(tmp_path / "e"), "--kind", "zip"]) == 3
