"""Start an agent and run it to its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import structlog
import uvicorn

from muster.errors import ConfigError, Conflict
from muster.listening import open_listener, url_of
from muster.probe import files
from muster.probe.agent.agent import Agent
from muster.probe.agent.app import AgentApp
from muster.probe.agent.lives import Life
from muster.probe.agent.register import Heartbeat
from muster.probe.agent.settings import AgentSettings
from muster.probe.agent.snapshot import Node
from muster.probe.agent.sources import Place, Source, open_sources
from muster.probe.agent.store import Store
from muster.probe.lock import AGENT_LOCK, LockProbe, OwnerLock

ADDRESS_FILE = "agent.json"


def serve(settings: AgentSettings) -> None:
    """Serve until the job has ended and `linger_s` has passed, or SIGTERM or SIGINT comes.

    Raises ConfigError when the directory or address cannot be used, Conflict when an agent of this job already runs here.
    """
    signal.signal(signal.SIGTERM, _end)
    with suppress(OSError):
        os.nice(10)
    roots = files.roots(settings.dir)
    lock, directory = _claim(roots, settings.job)
    listener = open_listener(settings.listen, hint="Port 0 takes a free one.", backlog=128)
    try:
        addr = advertised(settings.advertise, listener)
        node = Node(settings.job, settings.node, settings.node, addr)
        store = Store(
            roots, node,
            rows_per_table=settings.rows_per_table, bytes_per_table=settings.bytes_per_table,
            memory_limit=settings.memory_limit,
        )  # fmt: skip
        try:
            _write_address(directory, addr)
            asyncio.run(_Service(settings, Agent(store), addr, listener).run())
        finally:
            store.close()
            with suppress(OSError):
                os.unlink(ADDRESS_FILE, dir_fd=directory)
    finally:
        listener.close()
        os.close(directory)
        lock.release()


def running_agent(roots: Sequence[Path], job: str) -> dict[str, Any] | None:
    """Address and pid of the agent that serves a job on this node, from the file that it wrote; None without one. A file
    that an agent left behind when it was killed does not count: it no longer holds the agent lock."""
    for root in roots:
        probe = LockProbe(root / job / AGENT_LOCK)
        try:
            if probe.holder() is not None:
                found: dict[str, Any] = json.loads((root / job / ADDRESS_FILE).read_text())
                return found
        except (OSError, ValueError):
            continue
        finally:
            probe.close()
    return None


def advertised(advertise: str | None, listener: socket.socket) -> str:
    """The URL to register: what was set, with the port of the listener where it says 0, else that of the listener."""
    if advertise is None:
        return url_of(listener)
    parts = urlsplit(advertise)
    if parts.port != 0:
        return advertise
    return parts._replace(netloc=f"{parts.netloc.removesuffix(':0')}:{listener.getsockname()[1]}").geturl()


class _Service:
    """The background work around the HTTP server."""

    def __init__(self, settings: AgentSettings, agent: Agent, addr: str, listener: socket.socket) -> None:
        self._settings = settings
        self._agent = agent
        self._listener = listener
        token = settings.serve_token.get_secret_value() if settings.serve_token else None
        app = AgentApp(agent, token).build()
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._heartbeat = None
        if settings.gateway:
            secret = settings.token.get_secret_value() if settings.token else None
            self._heartbeat = Heartbeat(settings.gateway, secret, addr, agent.node, agent.count_failure)
        self._watched: dict[int, Life] = {}
        self._known: tuple[object, ...] = ()
        self._log = structlog.get_logger("muster.agent")
        self._addr = addr
        place = Place(settings.job, environ=dict(os.environ))
        self._sources, reasons = open_sources(settings.source_names, place)
        for source in self._sources:
            agent.offer(source)
        for name, why in reasons.items():
            self._log.info("source is off", source=name, why=why)

    async def run(self) -> None:
        self._log.info("serving", job=self._settings.job, node=self._settings.node, addr=self._addr)
        async with anyio.create_task_group() as group:
            group.start_soon(self._guarded, self._look)
            if self._settings.sample_s:
                group.start_soon(self._guarded, self._sample)
            for source in self._sources:
                group.start_soon(self._guarded, self._observe, source)
            if self._heartbeat is not None:
                group.start_soon(self._guarded, self._heartbeat.run)
            with suppress(SystemExit, KeyboardInterrupt):  # the signal that ended it
                await self._server.serve(sockets=[self._listener])
            group.cancel_scope.cancel()
        for source in self._sources:
            source.close()

    async def _guarded(self, work: Any, *arguments: Any) -> None:
        """Background work goes on after a failure; the failure is logged."""
        while True:
            try:
                await work(*arguments)
            except Exception as error:
                self._agent.count_failure()
                name = " ".join([work.__name__.strip("_"), *(a.name for a in arguments)])
                self._log.exception("background work failed", work=name, error=str(error))
            await anyio.sleep(1.0)

    async def _look(self) -> None:
        started = time.monotonic()
        alone_since = started
        seen = False
        while True:
            lives = await anyio.to_thread.run_sync(self._agent.refresh)
            self._watch(lives)
            self._tell(lives)
            now = time.monotonic()
            seen = seen or bool(lives)
            if any(x.alive for x in lives):
                alone_since = now
            patience = self._settings.linger_s if seen else self._settings.start_s
            if now - alone_since > patience:
                self._log.info("nothing left to serve", job=self._settings.job)
                self._server.should_exit = True
                return
            await anyio.sleep(self._settings.poll_s)

    async def _sample(self) -> None:
        while True:
            await anyio.to_thread.run_sync(self._agent.sample)
            await anyio.sleep(self._settings.sample_s)

    async def _observe(self, source: Source) -> None:
        while True:
            try:
                await anyio.to_thread.run_sync(self._agent.observe, source)
            finally:
                await anyio.sleep(source.every_s)

    def _watch(self, lives: Sequence[Life]) -> None:
        """Learn of an end the moment it comes, from the process's own descriptor."""
        loop = asyncio.get_running_loop()
        for life in lives:
            if life.number not in self._watched:
                descriptor = life.watch()
                if descriptor is not None:
                    self._watched[life.number] = life
                    loop.add_reader(descriptor, self._ended, life, descriptor)

    def _ended(self, life: Life, descriptor: int) -> None:
        life.note_gone(time.time_ns())
        asyncio.get_running_loop().remove_reader(descriptor)
        if self._heartbeat is not None:
            self._heartbeat.changed()

    def _tell(self, lives: Sequence[Life]) -> None:
        """A heartbeat at once when ranks, generations, states or tables have changed."""
        known = tuple((x.number, x.status, x.meta.generation if x.meta else None, len(x.kept)) for x in lives)
        if known != self._known:
            self._known = known
            if self._heartbeat is not None:
                self._heartbeat.changed()


def _end(*_: object) -> None:
    """uvicorn raises the signal again once it has shut down; then what is held is given back on the way out."""
    raise SystemExit(0)


def _claim(roots: Sequence[Path], job: str) -> tuple[OwnerLock, int]:
    """The agent lock of the job, and a descriptor of its directory."""
    problem: OSError | None = None
    for root in roots:
        try:
            top = files.open_root(root)
            try:
                directory = files.open_directory(files.check_job(job), top, create=True)
            finally:
                os.close(top)
            lock = OwnerLock.acquire(directory, str(os.getpid()), AGENT_LOCK)
        except OSError as error:
            problem = error
            continue
        if lock is None:
            os.close(directory)
            other = running_agent(roots, job)
            where = f" at {other['addr']} (pid {other['pid']})" if other and {"addr", "pid"} <= other.keys() else ""
            raise Conflict(
                f"An agent already serves job {job} on this node{where}.", hint="One is enough for all its ranks."
            )
        return lock, directory
    raise ConfigError(f"no directory for the agent: {problem}", hint="Set MUSTER_DIR to a directory of your own.")


def _write_address(directory: int, addr: str) -> None:
    """Where this agent can be found, for others of this user on this node."""
    text = json.dumps({"addr": addr, "pid": os.getpid()}).encode()
    temporary = f".{ADDRESS_FILE}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, files.FILE_MODE, dir_fd=directory)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
    os.replace(temporary, ADDRESS_FILE, src_dir_fd=directory, dst_dir_fd=directory)
