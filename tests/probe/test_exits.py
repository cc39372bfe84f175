"""How a process ended is in its last row, and what was hooked in before still runs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.probe.reader import discover
from probe.kit import rows

Script = Callable[..., "subprocess.Popen[str]"]

HEAD = """
import sys, os, threading
import muster.probe as probe
assert probe.start(job="j", collect="none"), probe.SESSION.reason
probe.step(10)
probe.step()
"""


def end_of(script: Script, tmp_path: Path, body: str) -> tuple[int, str, list[dict[str, Any]]]:
    process = script(HEAD + body)
    _, err = process.communicate(timeout=60)
    (life,) = discover(tmp_path / "root", "j")
    found = rows(life, "process.exit")
    assert not life.alive()
    life.close()
    return process.returncode, err, found


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ("pass", 0, None),
        ("sys.exit()", 0, 0),
        ("sys.exit(7)", 7, 7),
        ("sys.exit('words')", 1, 1),
        ("os._exit(9)", 9, 9),
        ("raise SystemExit(3)", 3, None),
        ("try:\n    sys.exit(5)\nexcept SystemExit:\n    pass\nprobe.step()", 0, None),
    ],
)
def test_a_clean_end_has_its_code_where_it_can_be_known(
    script: Script, tmp_path: Path, body: str, code: int, told: int | None
) -> None:
    returned, _, found = end_of(script, tmp_path, body)
    assert returned == code
    assert [(r["kind"], r["code"], r["signal"], r["exception"]) for r in found] == [("exit", told, None, None)]
    assert found[0]["last_step"] in (11, 12)
    assert found[0]["rank"] == 0


def test_an_exception_is_kept_and_still_shown(script: Script, tmp_path: Path) -> None:
    returned, err, found = end_of(script, tmp_path, "raise ValueError('äußerst schlecht')")
    assert returned == 1
    assert "ValueError: äußerst schlecht" in err
    assert [(r["kind"], r["code"], r["exception"], r["message"]) for r in found] == [
        ("exception", 1, "ValueError", "äußerst schlecht")
    ]


def test_hooks_that_were_there_before_still_run(script: Script, tmp_path: Path) -> None:
    process = script(
        """
        import sys, threading, atexit
        atexit.register(lambda: print("atexit"))
        sys.excepthook = lambda *a: print("excepthook", a[0].__name__)
        threading.excepthook = lambda a: print("thread", a.exc_type.__name__)
        """
        + HEAD.replace("\n", "\n        ")
        + """
        def work():
            raise KeyError("t")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        raise ValueError("m")
        """
    )
    out, _ = process.communicate(timeout=60)
    assert out.split("\n")[:3] == ["thread KeyError", "excepthook ValueError", "atexit"]
    (life,) = discover(tmp_path / "root", "j")
    events = [r for r in rows(life, "python.trace_event") if r["record_type"] == "event"]
    assert [(e["name"], e["event_attributes"]) for e in events] == [
        ("thread.exception", """{"exception":"KeyError","message":"'t'"}""")
    ]
    assert [r["exception"] for r in rows(life, "process.exit")] == ["ValueError"]


def test_an_exception_whose_message_cannot_be_made_does_no_harm(script: Script, tmp_path: Path) -> None:
    body = """
class Bad(Exception):
    def __str__(self):
        raise RuntimeError("no")
raise Bad()
"""
    returned, _, found = end_of(script, tmp_path, body)
    assert returned == 1
    assert found[0]["exception"] == "Bad"


def test_hooks_are_put_back_on_stop(script: Script) -> None:
    source = """
        import sys, os, threading
        before = (sys.excepthook, threading.excepthook, sys.exit, os._exit)
        import muster.probe as probe
        assert probe.start(job="j", collect="none")
        assert sys.excepthook is not before[0] and sys.exit is not before[2]
        probe.stop()
        assert (sys.excepthook, threading.excepthook, sys.exit, os._exit) == before
    """
    process = script(source)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def test_a_stop_writes_no_end_of_the_process(script: Script, tmp_path: Path) -> None:
    _, _, found = end_of(script, tmp_path, "probe.stop()")
    assert found == []
