"""The logic of `muster run`: a training command whose ranks are recorded, without a change to its code."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import NoReturn

from muster.errors import ConfigError
from muster.probe import files
from muster.probe.bundle import write_bundle
from muster.probe.keeper import AgentKeeper
from muster.probe.lock import AGENT_LOCK, LockProbe
from muster.probe.reader import discover
from muster.probe.sweep import sweep

INJECT = Path(__file__).with_name("inject")
FORWARDED = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.", "deepspeed.")
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Of one `muster run`.

    `directory`: where the recorders' files go (else /dev/shm/muster-<uid>). `collect`: collectors, None for the default.
    `ring_bytes`: bytes of files per rank. `agent`: start one if none serves this job on this node, and again if it
    is killed. `agent_command`: how; options are appended. `bundle_dir`: where to write the bundle on abnormal exit, None
    for ./muster-<job>-<time>; `bundle` False for never. `keep_s`: files of other jobs that ended longer ago are removed.
    """

    job: str
    command: tuple[str, ...]
    gateway: str | None = None
    token: str | None = None
    directory: Path | None = None
    node: str | None = None
    listen: str | None = None
    collect: str | None = None
    ring_bytes: int | None = None
    agent: bool = True
    agent_command: tuple[str, ...] = (sys.executable, "-m", "muster.cli", "agent")
    agent_options: tuple[str, ...] = ()
    bundle: bool = True
    bundle_dir: Path | None = None
    keep_s: float = 86_400.0


def environment(options: RunOptions, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that `muster run` adds to the environment of the training command. Setting them by hand does the same
    (`muster run --print-env`)."""
    try:
        files.check_job(options.job)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    before = environ.get("PYTHONPATH")
    added = {"MUSTER_JOB": options.job, "PYTHONPATH": f"{INJECT}{os.pathsep}{before}" if before else str(INJECT)}
    optional = {
        "MUSTER_DIR": options.directory and str(options.directory.absolute()),
        "MUSTER_GATEWAY": options.gateway,
        "MUSTER_NODE": options.node,
        "MUSTER_COLLECT": options.collect,
        "MUSTER_RING_BYTES": options.ring_bytes and str(options.ring_bytes),
    }
    added |= {name: value for name, value in optional.items() if value}
    if "RANK" not in environ and is_single(options.command):
        added |= {"MUSTER_RANK": "0", "MUSTER_WORLD_SIZE": "1"}
    return added


def print_env(options: RunOptions, environ: Mapping[str, str] = os.environ) -> str:
    """The same as lines for a shell."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment(options, environ).items())


def is_single(command: Sequence[str]) -> bool:
    """Whether a command is one Python program rather than a launcher of many: then it is rank 0 of 1."""
    if not command or not Path(command[0]).name.startswith("python"):
        return False
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else ""
    return not module.startswith(_LAUNCHER_MODULES)


def run(options: RunOptions, environ: Mapping[str, str] = os.environ) -> int:
    """Run the command to its end and return its exit code, or minus the signal that ended it (`exit_with` passes either
    on). Raises ConfigError for a bad job id or a command that cannot be started. Call it from the main thread."""
    if not options.command:
        raise ConfigError("no command given", hint="muster run --job ID -- torchrun train.py")
    added = environment(options, environ)
    roots = files.roots(options.directory, environ)
    for root in roots:
        sweep(root, options.keep_s, keep=options.job)
    keeper = AgentKeeper(
        lambda: start_agent(options, roots, environ), lambda: any(agent_serves(root, options.job) for root in roots)
    )
    if options.agent:
        keeper.begin()
    started = time()
    code = _run_command(options.command, {**environ, **added}, keeper.look if options.agent else None)
    keeper.end()
    if not recorded(options.job, roots, started):
        print(
            f"muster: nothing was recorded for job {options.job}: no process had RANK set and the rank to itself"
            " (is the job already recorded here, or the rank started by a shell?)",
            file=sys.stderr,
        )
    elif code != 0 and options.bundle:
        _say_bundle(options, roots, code, started)
    return code


def recorded(job: str, roots: Sequence[Path], since: float) -> bool:
    """Whether a rank of the job has begun to record after `since` (seconds since the epoch)."""
    lives = [life for root in roots for life in discover(root, job)]
    found = any(int(life.life.partition("-")[0]) >= since * 1e9 for life in lives)
    for life in lives:
        life.close()
    return found


def exit_with(code: int) -> NoReturn:
    """End this process as the command ended: by exit code, or by the same signal."""
    if code < 0:
        number = -code
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        sys.stdout.flush()
        sys.stderr.flush()
        os.kill(os.getpid(), number)
    sys.exit(code if code >= 0 else 128 - code)


def _run_command(command: Sequence[str], environ: Mapping[str, str], look: Callable[[], None] | None) -> int:
    """Start the command, hand on the signals that this process gets, wait; `look` is called about every second."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    try:
        try:
            process = subprocess.Popen(  # noqa: S603 - running the user's command is what it is for
                list(command),
                env=dict(environ),
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
            )
        except OSError as error:
            raise ConfigError(f"cannot run {command[0]!r}: {error.strerror or error}") from error
        while process.poll() is None:
            info = signal.sigtimedwait(FORWARDED | {signal.SIGCHLD}, _POLL_S)
            # a terminal sends its signals to the whole foreground group: the command has got those (si_code > 0) itself
            if info is not None and info.si_signo in FORWARDED and info.si_code <= 0:
                process.send_signal(info.si_signo)
            if look is not None:
                look()
        return process.returncode
    finally:
        while signal.sigtimedwait({signal.SIGCHLD}, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_agent(options: RunOptions, roots: Sequence[Path], environ: Mapping[str, str]) -> int | None:
    """Start an agent in a session of its own. Its pid, None if it was not started. It gets the token by environment, since
    arguments can be read by others. Trouble is said in one line, never raised: training goes on without it."""
    try:
        log = _agent_log(roots, options.job)
        words = [*options.agent_command, "--job", options.job]
        for name, value in (
            ("--dir", options.directory and str(options.directory.absolute())),
            ("--gateway", options.gateway),
            ("--node", options.node),
            ("--listen", options.listen),
        ):
            if value:
                words += [name, value]
        words += options.agent_options
        own = {k: v for k, v in environ.items() if k not in ("RANK", "LOCAL_RANK")}
        if options.token:
            own["MUSTER_TOKEN"] = options.token
        try:
            return os.posix_spawnp(
                words[0],
                words,
                own,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsid=True,
                setsigmask=(),  # while the command runs this process blocks what it hands on
            )
        finally:
            os.close(log)
    except OSError as error:
        print(f"muster: no agent started: {error}", file=sys.stderr)
        return None


def agent_serves(root: Path, job: str) -> bool:
    """Whether an agent holds the agent lock of the job below this root."""
    probe = LockProbe(root / job / AGENT_LOCK)
    try:
        return probe.holder() is not None
    except OSError:
        return False
    finally:
        probe.close()


def _agent_log(roots: Sequence[Path], job: str) -> int:
    """The agent's log file in the first root that can be used; OSError of the last one if none can."""
    problem: OSError | None = None
    for root in roots:
        try:
            top = files.open_root(root)
            directory = files.open_directory(job, top, create=True)
            os.close(top)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            log = os.open("agent.log", flags, files.FILE_MODE, dir_fd=directory)
            os.close(directory)
        except OSError as error:
            problem = error
        else:
            return log
    raise problem or FileNotFoundError("no directory for the agent's log")


def _say_bundle(options: RunOptions, roots: Sequence[Path], code: int, started: float) -> None:
    try:
        where = write_bundle(options.job, roots, options.bundle_dir, options.command, code, started, time())
    except OSError as error:
        print(f"muster: no bundle written: {error}", file=sys.stderr)
        return
    ended = f"exit code {code}" if code > 0 else f"signal {-code}"
    if where is not None:
        print(f"muster: the command ended with {ended}; what was recorded is in {where}", file=sys.stderr)
