"""Programs that this project starts: they end when it ends, for any reason.

Use :func:`run` in place of ``subprocess.run``. Each program runs below ``supervisor.py``, which
ends it and its descendants, even after a SIGKILL of this process.
"""

import contextlib
import ctypes
import errno
import faulthandler
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from golden.interrupt import raise_dropped

SUPERVISOR = [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py"))]
GRACE_S = 5.0
POLL_S = 0.2
STDOUT = subprocess.STDOUT
PR_SET_PDEATHSIG = 1  # of Linux' prctl

_running: set[subprocess.Popen] = set()


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived: an interrupt with another status."""

    def __init__(self, number: int):
        super().__init__(f"by {signal.Signals(number).name}")
        self.status = 128 + number


class Stuck(Exception):
    """A program was ended because it made no progress."""


def run(
    command: Sequence[str],
    *,
    cwd: Path | str | None = None,
    env: dict[str, str] | None = None,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    timeout: float | None = None,
    stuck: Callable[[], bool] | None = None,
    grace: float = GRACE_S,
) -> subprocess.CompletedProcess:
    """Run a program to its end; returns its output as text, unless it goes to files.

    timeout
        Seconds after which it is ended; its status then says SIGTERM or SIGKILL.
    grace
        Seconds from SIGTERM to SIGKILL.
    stuck
        Called every POLL_S seconds; once it returns true, the program is ended. Only with output
        to files.
    :raises Stuck: if `stuck` ended it.
    :raises FileNotFoundError: if there is no such program.
    """
    if shutil.which(command[0], path=(env or os.environ).get("PATH")) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(command[0]))
    process = subprocess.Popen(
        [*SUPERVISOR, str(os.getpid()), str(grace), *map(str, command)],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
    )
    _running.add(process)
    try:
        if stuck is None:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.terminate()
                out, err = process.communicate()
            return subprocess.CompletedProcess(command, process.returncode, out, err)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return subprocess.CompletedProcess(command, process.wait(POLL_S))
            if stuck():
                raise Stuck(str(command[0]))
    finally:  # after an interrupt, too
        if process.poll() is None:
            process.terminate()
            process.communicate()
        _running.discard(process)


def call_in_fork(function: Callable[[], Any], seconds: float) -> Any:
    """Call `function` in a fork of this process, because it may crash or never end.

    :raises Stuck: with the reason, if it does.
    """
    libc = ctypes.CDLL(None)
    read, write = os.pipe()
    with tempfile.TemporaryFile("w+", errors="replace") as said, warnings.catch_warnings():
        # Python warns that a fork has no other threads; `function` calls compiled code alone.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            _answer(function, write, said.fileno(), libc)
        os.close(write)
        ready: list = []
        try:
            with open(read, "rb") as file:
                ready, _, _ = select.select([file], [], [], seconds)
                answer = file.read() if ready else b""
        finally:
            if not ready:
                os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not ready:
            raise Stuck(f"it did not end within {seconds:.0f} s: is there an endless loop?")
        if code:
            said.seek(0)
            lines = said.read().split("\n")
            reason = next((line for line in lines if "rror" in line), "no reason given")
            how = f"status {code}" if code > 0 else signal.Signals(-code).name
            raise Stuck(f"it was ended with {how}: {reason}")
    return pickle.loads(answer)


def _answer(function: Callable[[], Any], write: int, said: int, libc: ctypes.CDLL) -> NoReturn:
    """Call `function` in the fork, send its result, and exit without cleaning up."""
    try:
        faulthandler.disable()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(said, 1)
        os.dup2(said, 2)
        with open(write, "wb") as file:
            file.write(pickle.dumps(function()))
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)


@contextlib.contextmanager
def clean_exit() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise an exception, as Ctrl-C does, and end started programs.

    An interrupt that Python drops, as in ``__del__``, is raised again.
    """

    def handle(number, frame):
        for process in list(_running):  # of other threads, too, which get no exception
            process.terminate()
        raise Terminated(number)

    before = {n: signal.signal(n, handle) for n in (signal.SIGTERM, signal.SIGHUP)}
    report = raise_dropped(KeyboardInterrupt)
    try:
        yield
    except KeyboardInterrupt:
        silence_unused()
        raise
    finally:
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, handler)


def silence_unused() -> None:
    """Suppress Amaranth's warnings of unused components, which an interrupt leaves behind."""
    if "amaranth" in sys.modules:
        from amaranth.hdl import UnusedElaboratable

        warnings.simplefilter("ignore", UnusedElaboratable)


def silent_for(path: Path, started: float) -> float:
    """Seconds since `path` was last touched or, without it, since the time `started`."""
    with contextlib.suppress(FileNotFoundError):
        started = max(started, path.stat().st_mtime)
    return time.time() - started
