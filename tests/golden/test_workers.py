"""Processes of ``golden results``: they end with the command, however that ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from sim.core.tools import ROOT

SCRIPT = """
import os, sys, time
from golden import interrupt
from golden.evaluation.workers import run_all
def start(text):
    print(text, os.getpid(), flush=True)
def do(task):
    print("at work", flush=True)
    if task < 0:
        os.kill(os.getpid(), 9)
    time.sleep(task)
    return 2 * task
if __name__ == "__main__":
    interrupt.raise_exceptions()
    try:
        print(run_all(do, list(map(float, sys.argv[1:])), 2, start, ("ready",)))
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.fixture
def begin(tmp_path):
    """Starts two workers on tasks that last some seconds each; gives the process."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    started = []

    def begin(*seconds):
        command = [sys.executable, str(path), *map(str, seconds)]
        options = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, start_new_session=True, **options, **pipes))
        return started[-1]

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def at_work(process) -> list[int]:
    """Numbers of both workers, once both have a task."""
    lines = [process.stdout.readline().split() for _ in range(4)]
    return [int(line[1]) for line in lines if line[0] == "ready"]


def gone(number: int) -> bool:
    for _ in range(200):
        try:
            os.kill(number, 0)
            with open(f"/proc/{number}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_results_by_task(begin):
    out, err = begin(0.25, 0, 0.125).communicate(timeout=60)
    assert err == "" and eval(out.splitlines()[-1]) == {0.0: 0.0, 0.125: 0.25, 0.25: 0.5}


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_workers_end_with_the_command(begin, number, status):
    process = begin(600, 600, 600, 600)
    workers = at_work(process)
    assert len(workers) == 2
    if number == signal.SIGINT:  # a terminal sends it to all
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    assert process.wait(timeout=30) == status
    assert all(map(gone, workers))
    assert "Traceback" not in process.communicate()[1]


def test_a_killed_worker_is_one_sentence(begin):
    process = begin(-1, 600)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.splitlines()[-1].endswith(
        "InputError: a worker process was killed, perhaps for lack of memory: give fewer --jobs"
    )
