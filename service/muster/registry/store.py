"""What must survive a restart of the gateway, in one SQLite file: registrations and last verdicts.

Written on change, never per heartbeat. A file that cannot be used is said and done without.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson
from pydantic import ValidationError

from muster.protocol import Registration

FORMAT = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS nodes (job TEXT, node TEXT, seen_at TEXT, body TEXT, PRIMARY KEY (job, node));
CREATE TABLE IF NOT EXISTS verdicts (job TEXT PRIMARY KEY, at TEXT, body TEXT);
"""


@dataclass(frozen=True, slots=True)
class StoredNode:
    job: str
    node: str
    seen_at: datetime
    registration: Registration


class Store:
    """Thread-safe. `problem` says why nothing is kept, None while all is well."""

    def __init__(self, path: Path | None) -> None:
        """`path` None keeps nothing. A file that cannot be opened is not an error: see `problem`."""
        self.path = path
        self.problem: str | None = None
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._open_whole(path)
        except (sqlite3.Error, OSError, ValueError) as error:
            self.problem = f"{path}: {error}"

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def nodes(self) -> list[StoredNode]:
        """All registrations that were kept; unreadable ones are left out."""
        found, rows = [], []
        with self._using() as connection:
            if connection is not None:
                rows = connection.execute("SELECT job, node, seen_at, body FROM nodes").fetchall()
        for job, node, seen_at, body in rows:
            try:
                registration = Registration.model_validate_json(body)
                found.append(StoredNode(job, node, datetime.fromisoformat(seen_at), registration))
            except (ValidationError, ValueError):
                continue
        return found

    def put_node(self, job: str, node: str, seen_at: datetime, registration: Registration) -> None:
        body = registration.model_dump_json(by_alias=True)
        self._write("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)", (job, node, seen_at.isoformat(), body))

    def drop_node(self, job: str, node: str) -> None:
        self._write("DELETE FROM nodes WHERE job = ? AND node = ?", (job, node))

    def drop_job(self, job: str) -> None:
        self._write("DELETE FROM nodes WHERE job = ?", (job,))
        self._write("DELETE FROM verdicts WHERE job = ?", (job,))

    def verdicts(self) -> dict[str, dict[str, object]]:
        """The last verdict of each job, as it was put."""
        rows = []
        with self._using() as connection:
            if connection is not None:
                rows = connection.execute("SELECT job, body FROM verdicts").fetchall()
        found: dict[str, dict[str, object]] = {}
        for job, body in rows:
            try:
                found[job] = orjson.loads(body)
            except orjson.JSONDecodeError:
                continue
        return found

    def put_verdict(self, job: str, at: datetime, body: dict[str, object]) -> None:
        text = orjson.dumps(body).decode()
        self._write("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", (job, at.isoformat(), text))

    def _write(self, sql: str, values: tuple[str, ...]) -> None:
        with self._using() as connection:
            if connection is not None:
                with connection:
                    connection.execute(sql, values)
                self.problem = None

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection | None]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                self.problem = f"{self.path}: {error}"

    def _open_whole(self, path: Path) -> sqlite3.Connection:
        """A damaged file is moved aside, for whoever wants to look, and a new one begun."""
        try:
            connection = self._open(path)
            (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if state == "ok":
                return connection
            connection.close()
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            state = str(error)
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        for journal in (path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            journal.unlink(missing_ok=True)
        self.problem = f"{path} was damaged ({state}); it is now {aside}, and a new one was begun"
        return self._open(path)

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, check_same_thread=False, timeout=2.0)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found not in (0, FORMAT):
                raise ValueError(f"has format {found}, this Muster reads {FORMAT}")
            connection.executescript(_TABLES)
            connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection
