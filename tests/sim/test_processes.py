"""Programs end with the process that started them; a forked call that crashes ends alone."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sim.core import processes
from sim.core.tools import ROOT

# Starts a program that starts another, whose number it writes to the file "pid".
PARENT = """
import sys
from sim.core import processes
with processes.clean_exit():
    try:
        processes.run(["sh", "-c", "sleep 60 & echo $! > pid.new; mv pid.new pid; wait"])
    except KeyboardInterrupt as interrupt:
        sys.exit(getattr(interrupt, "status", 130))
"""


def wait_until(condition, seconds: float = 20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Whether a process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    "number, status",
    [("SIGKILL", -9), ("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)],
)
def test_a_program_ends_with_the_process_that_started_it(tmp_path, number, status):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    wait_until((tmp_path / "pid").exists)
    grandchild = int((tmp_path / "pid").read_text())
    assert runs(grandchild)
    parent.send_signal(signal.Signals[number])
    assert parent.wait(20) == status
    wait_until(lambda: not runs(grandchild))


def test_an_interrupt_that_python_drops_is_raised_again():
    class Dropped:
        def __del__(self):  # exceptions in here are reported, and go no further
            signal.raise_signal(signal.SIGINT)

    before = sys.unraisablehook
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), processes.clean_exit():
        Dropped()
        time.sleep(20)
    assert time.monotonic() - started < 10 and sys.unraisablehook is before


def test_output_and_status(tmp_path):
    run = processes.run(["sh", "-c", "pwd; echo no >&2; exit 3"], cwd=tmp_path)
    assert (run.stdout, run.stderr, run.returncode) == (f"{tmp_path}\n", "no\n", 3)
    assert processes.run(["sh", "-c", "kill -SEGV $$"]).returncode == 128 + signal.SIGSEGV
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        processes.run(["no-such-program"])


def test_what_gets_stuck_is_ended(tmp_path):
    with open(tmp_path / "log", "w") as log, pytest.raises(processes.Stuck):
        processes.run(["sleep", "60"], stdout=log, stderr=log, stuck=lambda: True)
    assert not processes._running


def test_seconds_since_the_last_sign_of_life(tmp_path):
    file, now = tmp_path / "alive", time.time()
    assert 99 < processes.silent_for(file, now - 100) < 200
    file.touch()
    assert processes.silent_for(file, now - 100) < 50


def test_signals_are_as_before_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(processes.Terminated) as caught, processes.clean_exit():
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(10)
    assert caught.value.status == 143 and signal.getsignal(signal.SIGTERM) == before


def test_a_call_apart():
    assert processes.call_in_fork(lambda: {"a": 1}, 10) == {"a": 1}
    with pytest.raises(processes.Stuck, match=r"^it did not end within 0 s: is there an endless"):
        processes.call_in_fork(lambda: time.sleep(60), 0.1)

    def broken():
        raise ValueError("no such stream")

    with pytest.raises(processes.Stuck, match="SIGKILL: ValueError.'no such stream'"):
        processes.call_in_fork(broken, 10)

    def crash():
        os.write(2, b"note\n%Error: it did not converge\n")
        os.abort()

    with pytest.raises(
        processes.Stuck, match="^it was ended with SIGABRT: %Error: it did not conv"
    ):
        processes.call_in_fork(crash, 10)
