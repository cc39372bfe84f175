"""The recording of this process: begun and ended once, by code or by environment, and gone in a forked child."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from threading import RLock
from time import time_ns
from typing import Any

from muster.probe import files
from muster.probe.errorlog import ErrorLog
from muster.probe.exits import ExitWatch
from muster.probe.identity import DEFAULT_RING_BYTES, identity
from muster.probe.life import Life, Taken
from muster.probe.recorder import Recorder

DEFAULT_COLLECT = "torch"


class Session:
    """Holds the recorder while there is one. No method raises."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.errors = ErrorLog()
        self.reason: str | None = None
        """Why nothing is recorded, where recording was asked for."""
        self._exits: ExitWatch | None = None
        self._uninstall: Callable[[], None] | None = None
        self._lock = RLock()
        self._said = False

    def start(self, arguments: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> bool:
        """Begin to record. True if this process records (also if it did already)."""
        with self._lock:
            if self.recorder is not None:
                return True
            self.errors = ErrorLog()
            try:
                self._start(dict(arguments), environ)
            except Taken as error:  # a child that inherited the environment, such as a data-loader worker: expected
                self.reason = str(error)
            except Exception as error:
                self.errors.count("start", error)
                self.reason = f"{type(error).__name__}: {error}"
                self._say(f"muster: not recording: {error}")
            return self.recorder is not None

    def _start(self, arguments: dict[str, Any], environ: Mapping[str, str]) -> None:
        directory = arguments.pop("directory", None)
        ring_bytes = arguments.pop("ring_bytes", None) or environ.get("MUSTER_RING_BYTES") or DEFAULT_RING_BYTES
        collect = arguments.pop("collect", None)
        started_ns = time_ns()
        who = identity(arguments, environ)
        life = Life(files.roots(directory, environ), who, started_ns, int(ring_bytes), self.errors)
        try:
            recorder = Recorder(life, who)
        except BaseException:
            life.close()
            raise
        self.recorder = recorder
        self.reason = None
        self._exits = ExitWatch(recorder)
        self._exits.install()
        names = collect if collect is not None else environ.get("MUSTER_COLLECT", DEFAULT_COLLECT)
        wanted = tuple(n.strip() for n in names.split(",")) if isinstance(names, str) else tuple(names)
        self._collect(recorder, tuple(n for n in wanted if n and n != "none"))

    def _collect(self, recorder: Recorder, names: tuple[str, ...]) -> None:
        try:
            collectors = importlib.import_module("muster.probe.collectors")
        except ImportError:
            return
        try:
            self._uninstall = collectors.install(recorder, names).uninstall
            recorder.collectors = names
            recorder.write_meta()
        except Exception as error:
            recorder.count_error("collectors", error)

    def stop(self) -> None:
        """Stop recording; what was written stays readable."""
        with self._lock:
            if self._exits is not None:
                self._exits.remove()
                self._exits = None
            uninstall, self._uninstall = self._uninstall, None
            if self.recorder is not None:
                for close in (uninstall, self.recorder.close):
                    try:
                        if close is not None:
                            close()
                    except Exception as error:
                        self.errors.count("stop", error)
                self.recorder = None

    def after_fork(self) -> None:
        """In a forked child: everything off, nothing of the parent touched. The child may start a recording of its own."""
        self._lock = RLock()
        self._uninstall = None  # what is patched calls straight through from now on
        recorder, self.recorder = self.recorder, None
        exits, self._exits = self._exits, None
        try:
            if exits is not None:
                exits.remove()
            if recorder is not None:
                recorder.abandon()
        except Exception as error:
            self.errors = ErrorLog()
            self.errors.count("fork", error)

    def _say(self, line: str) -> None:
        """One line on standard error for the life of the process, at most."""
        if not self._said:
            self._said = True
            try:
                print(line, file=sys.stderr, flush=True)
            except Exception as error:
                self.errors.count("say", error)


SESSION = Session()
"""The one session of the process: locks, exit hooks and patches are the process's own, so there can be only one."""
os.register_at_fork(after_in_child=SESSION.after_fork)
