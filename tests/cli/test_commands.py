"""The command line: exit codes, errors, output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from harness import free_port

from api.conftest import World
from muster.cli.app import run_cli
from muster.cli.demo.fault import Fault
from muster.errors import ParameterError
from muster.gateway.settings import GatewaySettings, load_settings

ROOT = Path(__file__).parent.parent.parent


class Served:
    """A gateway over real HTTP with a job of four ranks."""

    def __init__(self) -> None:
        self.world = World(GatewaySettings(evaluate_s=0))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(self.world.app, port=self.port, log_config=None, timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.should_exit = True
    made.thread.join(5)


def test_health_exits_by_the_verdict(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.world.register()
    assert run_cli(["health", "j", "--gateway", served.url]) == 0
    assert "4 of 4 ranks answered" in capsys.readouterr().out
    served.world.slow_rank = 1
    served.world.register()
    assert run_cli(["health", "j", "--gateway", served.url]) in (1, 2)
    assert "rank 1" in capsys.readouterr().out
    served.world.silent |= {"n0", "n1"}
    assert run_cli(["health", "j", "--gateway", served.url]) == 3


def test_json_is_the_answer_and_nothing_else(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.world.register()
    assert run_cli(["health", "j", "--gateway", served.url, "--json"]) == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["status"] == "pass"
    assert out.err == ""


def test_query_explain_jobs_and_nodes(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.world.register()
    gateway = ["--gateway", served.url]
    sql = "SELECT _rank, count(*) AS n FROM python.torch_step_timing WHERE _rank < $r GROUP BY 1 ORDER BY 1"
    assert run_cli(["query", "j", sql, "--param", "r=2", *gateway]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines() if line[:1].strip() or "0" in line][-2:]
    words = [sys.executable, "-m", "muster.cli", "query", "j", sql, "-p", "r=2", "--json", *gateway]
    done = subprocess.run(words, capture_output=True, timeout=60)  # the gateway of this process logs to its output
    assert json.loads(done.stdout)["rows"] == [[0, 200], [1, 200]]
    assert run_cli(["explain", "j", sql, "-p", "r=2", *gateway]) == 0
    assert "torch_step_timing" in capsys.readouterr().out
    assert run_cli(["jobs", *gateway]) == 0
    assert "4 running" in capsys.readouterr().out
    assert run_cli(["jobs", "j", "--tables", *gateway]) == 0
    assert "python.torch_step_timing" in capsys.readouterr().out
    assert run_cli(["nodes", "j", *gateway]) == 0
    assert "n1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["health"],
        ["health", "j", "--gatway", "x"],
        ["halth"],
        ["demo", "--ranks", "many"],
        ["demo", "--fault", "straggler"],
        ["demo", "--fault", "kill:9"],
        ["health", "j", "--param", "nonsense"],
        ["query", "j"],
        ["agent", "--job", "not a job"],
        ["gateway", "--listen", "nonsense"],
        ["gateway", "--listen", "0.0.0.0:1"],
        ["token", "x", "--scope", "root"],
        ["run", "--job", "j"],
        ["run", "--job", "a b", "--", "true"],
    ],
)
def test_whatever_is_no_verdict_exits_3_and_says_why(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(words) == 3
    said = capsys.readouterr().err
    assert said.strip()
    assert "Traceback" not in said


def test_no_gateway_exits_3_and_names_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["health", "j", "--gateway", f"http://127.0.0.1:{free_port()}"]) == 3
    assert "muster gateway" in capsys.readouterr().err


def test_an_unknown_job_exits_3(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["health", "nope", "--gateway", served.url]) == 3
    assert "job_not_found" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["demo", "run", "health", "query", "explain", "jobs", "nodes", "gateway", "agent", "token", "version"]
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([command, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_the_process_exits_with_the_code_too() -> None:
    done = subprocess.run([sys.executable, "-m", "muster.cli", "health", "--nonsense"], capture_output=True, timeout=60)
    assert done.returncode == 3


def test_a_token_that_was_made_is_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_cli(["token", "oncall", "--scope", "read", "--scope", "query", "--job", "j"]) == 0
    file = tmp_path / "gateway.toml"
    file.write_text(capsys.readouterr().out)
    monkeypatch.setenv("MUSTER_GATEWAY_FILE", str(file))
    (token,) = load_settings(listen="0.0.0.0:8700").tokens
    assert (token.name, token.scopes, token.jobs) == ("oncall", {"read", "query"}, {"j"})


def test_run_passes_the_commands_exit_code_on(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "muster.cli",
        "run",
        "--job",
        "j",
        "--dir",
        str(tmp_path / "d"),
        "--no-agent",
        "--no-bundle",
    ]
    done = subprocess.run([*words, "--", sys.executable, "-c", "raise SystemExit(7)"], timeout=60)
    assert done.returncode == 7


def test_run_prints_its_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["run", "--job", "j", "--dir", str(tmp_path), "--print-env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "export MUSTER_JOB=j" in lines
    assert all(line.startswith("export ") for line in lines)


@pytest.mark.parametrize("text", ["none", "straggler:0", "hang:3", "kill:2"])
def test_faults_are_parsed(text: str) -> None:
    fault = Fault.parse(text, 4)
    assert f"{fault.kind}:{fault.rank}" == text or (text, fault.rank) == ("none", None)


@pytest.mark.parametrize("text", ["", "nope", "kill", "kill:", "kill:-1", "kill:4", "kill:1:2", "hang:x"])
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(ParameterError):
        Fault.parse(text, 4)


def test_every_command_and_target_of_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "docs/quickstart.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^\s+make (\S+)", text, re.MULTILINE)):
        assert f"\n{target}:" in makefile, target
    commands = set(re.findall(r"(?:^|[\s`(\"])(?:\.venv/bin/)?muster ([a-z]+)\b", text)) - {"for", "answers"}
    known = subprocess.run(
        [sys.executable, "-m", "muster.cli", "--help"], capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}
    ).stdout
    for command in commands:
        assert re.search(rf"│ {command}\s", known), command
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists() or (ROOT / "docs" / link).exists(), link


def test_run_registers_with_the_same_gateway_that_the_other_commands_ask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--job", "j", "--dir", str(tmp_path), "--print-env"]
    assert run_cli(words) == 0
    assert "export MUSTER_GATEWAY=http://127.0.0.1:8700" in capsys.readouterr().out
    assert run_cli([*words, "--gateway", ""]) == 0
    assert "MUSTER_GATEWAY" not in capsys.readouterr().out
