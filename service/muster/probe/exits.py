"""How the process ended: one row of process.exit. Every hook calls what was there before it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from muster.tables import PROCESS_EXIT

if TYPE_CHECKING:
    from muster.probe.recorder import Recorder


class ExitWatch:
    """Sees uncaught exceptions (`sys.excepthook`), the end of the interpreter (`atexit`), and the codes of `sys.exit` and
    `os._exit`. A code given by `raise SystemExit(n)` cannot be seen from inside: then `code` is NULL."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._code: int | None = None
        self._code_step = -1
        self._written = False
        self._excepthook = sys.excepthook
        self._thread_hook = threading.excepthook
        self._sys_exit = sys.exit
        self._os_exit = os._exit
        self._installed: dict[str, Any] = {}

    def install(self) -> None:
        """Hook in."""
        self._installed = {
            "excepthook": self._on_exception,
            "thread": self._on_thread_exception,
            "exit": self._on_sys_exit,
            "_exit": self._on_os_exit,
        }
        sys.excepthook = self._installed["excepthook"]
        threading.excepthook = self._installed["thread"]
        sys.exit = self._installed["exit"]
        os._exit = self._installed["_exit"]
        atexit.register(self._on_end)

    def remove(self) -> None:
        """Put back what was there before, unless somebody else has hooked in since."""
        if sys.excepthook is self._installed.get("excepthook"):
            sys.excepthook = self._excepthook
        if threading.excepthook is self._installed.get("thread"):
            threading.excepthook = self._thread_hook
        if sys.exit is self._installed.get("exit"):
            sys.exit = self._sys_exit
        if os._exit is self._installed.get("_exit"):
            os._exit = self._os_exit
        atexit.unregister(self._on_end)

    def _on_exception(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        self._write("exception", 1, exception=kind.__name__, message=_message(error))
        self._excepthook(kind, error, traceback)

    def _on_thread_exception(self, args: Any) -> None:
        if args.exc_type is not SystemExit:
            self._recorder.spans.event(
                "thread.exception", {"exception": args.exc_type.__name__, "message": _message(args.exc_value)}
            )
        self._thread_hook(args)

    def _on_sys_exit(self, status: Any = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            self._code = _code(status)
            self._code_step = self._recorder.counter.completed
        self._sys_exit(status)

    def _on_os_exit(self, status: int) -> NoReturn:
        if self._recorder.active:
            self._write("exit", status)
            self._recorder.close()
        self._os_exit(status)

    def _on_end(self) -> None:
        # a sys.exit that was caught, after which training went on, is not how the process ended
        code = self._code if self._code_step == self._recorder.counter.completed else None
        self._write("exit", code)

    def _write(self, kind: str, code: int | None, *, exception: str | None = None, message: str | None = None) -> None:
        recorder = self._recorder
        if self._written or not recorder.active:
            return
        self._written = True
        try:
            last = recorder.counter.global_step - 1 if recorder.counter.completed else None
            row = (time_ns(), recorder.identity.rank, kind, code, None, exception, message, last)
            recorder.table(PROCESS_EXIT.full_name).write(row)
            recorder.spans.finish()
        except Exception as error:
            recorder.count_error("exit", error)


def _code(status: Any) -> int:
    """The exit code that the interpreter makes of the argument of `sys.exit`."""
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1


def _message(error: BaseException | None) -> str | None:
    try:
        return None if error is None else str(error)
    except Exception as problem:
        return f"(its message cannot be made: {type(problem).__name__})"
