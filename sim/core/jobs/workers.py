"""Worker processes that end at once, with their descendants, when their parent ends."""

import collections
import contextlib
import io
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from sim.core.tools import ToolError


def call(function: Callable, arguments: tuple) -> tuple:
    """Make a call: (value, exception, seconds of wall-clock time)."""
    started = time.monotonic()
    value = error = None
    try:
        value = function(*arguments)
    except Exception as raised:
        error = raised
    return value, error, round(time.monotonic() - started, 1)


def call_pickled(pickled: bytes) -> bytes:
    """:func:`call` for other processes: (function, arguments) and the result are pickled."""
    try:
        answer = call(*pickle.loads(pickled))
    except Exception as unknown:
        answer = None, unknown, 0.0
    try:
        return pickle.dumps(answer)
    except Exception as unpicklable:
        return pickle.dumps((None, ToolError(f"{answer[1] or unpicklable!r}"), answer[2]))


class Worker:
    """A process that makes one call after another until its pipe is closed.

    The system closes the pipe when this process ends, for any reason, and the worker then ends.

    pipe
        Connection on which answers arrive.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=_serve, args=(end,))
        # Until the worker has its own process group, Ctrl-C would reach it too.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            end.close()

    def start(self, function: Callable, arguments: tuple) -> None:
        """Start a call."""
        # If the process has died, `answer` returns the error.
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send_bytes(pickle.dumps((function, arguments)))

    def answer(self) -> tuple:
        """The result of :func:`call`. Ends the worker if its process has died."""
        try:
            return pickle.loads(self.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            self.end()
            reason = f"the process died with status {self.process.exitcode}"
            return None, ToolError(reason), 0.0

    @property
    def ended(self) -> bool:
        return self.pipe.closed

    def end(self) -> None:
        """End the process and its descendants."""
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class _NoTerminal(io.TextIOWrapper):
    """Standard error that shows no progress bar: the parent process has one."""

    def isatty(self) -> bool:
        return False


def _serve(pipe: Connection) -> None:
    """Main loop of a worker process."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    sys.stderr = _NoTerminal(sys.stderr.buffer, line_buffering=True)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, calls), daemon=True).start()
    while True:
        pipe.send_bytes(call_pickled(calls.get()))


def _receive(pipe: Connection, calls: queue.SimpleQueue) -> None:
    """Queue calls while the main thread computes; end everything when the parent has ended."""
    try:
        while True:
            calls.put(pipe.recv_bytes())
    except (EOFError, OSError):
        # Provers have separate sessions, outside this process group.
        for process in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        # By its number: 0 would be the parent's group if setpgid had failed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _descendants(root: int) -> list[int]:
    """All descendants of a process, in whatever session, parents first."""
    children = collections.defaultdict(list)
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = status.read_text().rpartition(")")[2].split()[1]
        except OSError:  # the process has ended
            continue
        children[int(parent)].append(int(status.parent.name))
    found = [root]
    for process in found:
        found += children[process]
    return found[1:]
