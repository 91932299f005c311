"""Long jobs: in this process, in workers and on a cluster; what is kept; how they end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sim.core.jobs import executor, kept
from sim.core.jobs.background import Background
from sim.core.jobs.executor import Task, execute
from sim.core.tools import ROOT, ToolError

LITTLE = ("sim/__init__.py",)
"""A small source, which is hashed quickly."""


@pytest.fixture(autouse=True)
def build(tmp_path, monkeypatch):
    """A build folder of the test's own, into which calls note that they were made."""
    monkeypatch.setenv("SENBAZURU_BUILD", str(tmp_path))
    return tmp_path


def calls() -> int:
    return len(list(Path(os.environ["SENBAZURU_BUILD"]).glob("call_*")))


def square(number: int) -> int:
    (Path(os.environ["SENBAZURU_BUILD"]) / f"call_{time.monotonic_ns()}").touch()
    if number < 0:
        raise ToolError("there is no task of a negative number")
    return number * number


def process_of(number: int) -> int:
    return os.getpid()


def die(number: int) -> None:
    os._exit(number)


def unpicklable(number: int):
    return lambda: number


def squares(*numbers: int) -> list[Task]:
    return [Task(f"square of {number}", square, (number,)) for number in numbers]


def values(outcomes) -> list:
    return sorted(outcome.result() for outcome in outcomes)


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_is_run_and_a_failure_ends_no_other(jobs):
    outcomes = list(execute(squares(3, -1, 5), jobs=jobs, sources=LITTLE))
    good = [outcome for outcome in outcomes if outcome.error is None]
    assert values(good) == [9, 25] and not any(outcome.kept for outcome in outcomes)
    (bad,) = (outcome for outcome in outcomes if outcome.error is not None)
    with pytest.raises(ToolError, match="negative"):
        bad.result()


def test_workers_are_other_processes_and_one_that_dies_is_replaced():
    tasks = [Task(f"{n}", die if n == 3 else process_of, (n,)) for n in range(6)]
    tasks.append(Task("lambda", unpicklable, (1,)))
    outcomes = {o.task.name: o for o in execute(tasks, jobs=2, sources=LITTLE)}
    with pytest.raises(ToolError, match="^3: the process died with status 3$"):
        outcomes.pop("3").result()
    with pytest.raises(ToolError, match="pickle"):
        outcomes.pop("lambda").result()
    processes = {outcome.result() for outcome in outcomes.values()}
    assert os.getpid() not in processes and 2 <= len(processes) <= 3


def test_a_second_run_resumes():
    """Results are kept; failures and values that `keep` refuses are not."""
    run = execute(squares(2, 3, 4), sources=LITTLE)
    assert next(run).value == 4
    run.close()
    assert calls() == 1
    outcomes = list(execute(squares(4, 3, 2), sources=LITTLE))
    assert [(o.value, o.kept) for o in outcomes] == [(4, True), (16, False), (9, False)]
    assert values(execute(squares(2, 3, 4), sources=LITTLE)) == [4, 9, 16]
    assert calls() == 3
    assert values(execute(squares(2), sources=LITTLE, fresh=True)) == [4]
    assert calls() == 4
    for _ in range(2):
        assert [o.error is None for o in execute(squares(-1), sources=LITTLE)] == [False]
        assert values(execute(squares(9), sources=LITTLE, keep=lambda value: value < 81)) == [81]
    assert calls() == 8


def test_other_sources_or_tools_are_other_results(monkeypatch, tmp_path):
    def is_kept():
        kept.tools.cache_clear()
        kept.digest_once.cache_clear()
        return next(execute(squares(2), sources=("some",))).kept

    monkeypatch.setattr(kept, "ROOT", tmp_path)
    (tmp_path / "some" / "__pycache__").mkdir(parents=True)
    source = tmp_path / "some" / "code.py"
    source.write_text("1")
    assert [is_kept(), is_kept()] == [False, True]
    (tmp_path / "some" / "__pycache__" / "code.pyc").write_text("")
    assert is_kept()
    source.write_text("2")
    assert [is_kept(), is_kept()] == [False, True]
    monkeypatch.setattr(kept, "versions", lambda: "another compiler")
    assert [is_kept(), is_kept()] == [False, True]
    # A wheel that was made here leaves this project's metadata.
    (tmp_path / "senbazuru.egg-info").mkdir()
    (tmp_path / "senbazuru.egg-info" / "PKG-INFO").write_text("Name: senbazuru\nVersion: 9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_kept()
    kept.tools.cache_clear()
    kept.digest_once.cache_clear()


def test_sources_edited_meanwhile_keep_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    source = tmp_path / "code.py"
    source.write_text("1")
    run = execute(squares(2, 3), sources=("code.py",))
    assert next(run).value == 4
    source.write_text("edited")
    assert next(run).value == 9
    kept.digest_once.cache_clear()
    source.write_text("1")
    again = execute(squares(2, 3), sources=("code.py",))
    assert [outcome.kept for outcome in again] == [True, False]
    kept.digest_once.cache_clear()


JOB = """
import subprocess, sys, time
from sim.core.jobs.executor import Task, execute
from tests.sim.test_executor import LITTLE, sleep

if __name__ == "__main__":
    for outcome in execute([Task(n, sleep, (n,)) for n in "ab"], jobs=2, sources=LITTLE):
        print(outcome.error)
"""


def sleep(name: str) -> None:
    """Start a process in a session of its own, as provers do, and wait for it."""
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    pids = f"{os.getpid()} {child.pid}"
    (Path(os.environ["SENBAZURU_BUILD"]) / f"{name}.tmp").write_text(pids)
    os.rename(*(Path(os.environ["SENBAZURU_BUILD"]) / f"{name}.{end}" for end in ("tmp", "pids")))
    child.wait()


def alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return False


def within(seconds: float, condition) -> bool:
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_signal(build, number):
    job = build / "job.py"
    job.write_text(JOB)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, job], cwd=ROOT, env=environment, stderr=-1)
    try:
        assert within(30, lambda: len(list(build.glob("*.pids"))) == 2)
        pids = [int(pid) for path in build.glob("*.pids") for pid in path.read_text().split()]
        assert len(pids) == 4 and all(map(alive, pids))
    finally:
        parent.send_signal(number)
    assert parent.wait(10) == -number
    assert within(5, lambda: not any(map(alive, pids))), "orphans"
    said = parent.stderr.read().decode()
    assert said.count("Traceback") == (number == signal.SIGINT)  # the parent's own
    parent.stderr.close()


def test_a_cluster(build):
    distributed = _distributed()
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        outcomes = list(execute(squares(3, -1, 5), scheduler=address, sources=LITTLE))
        assert values(o for o in outcomes if o.error is None) == [9, 25]
        with pytest.raises(ToolError, match="negative"):
            next(o for o in outcomes if o.error is not None).result()
        assert calls() == 3
        again = execute(squares(3, 5), scheduler=address, sources=LITTLE)
        assert [outcome.kept for outcome in again] == [True, True]


def test_a_worker_with_other_sources_is_refused():
    with pytest.raises(ToolError, match="other sources"):
        executor._call_on_worker(b"", LITTLE, "another")


def test_no_cluster_is_one_sentence(monkeypatch):
    _distributed()
    monkeypatch.setattr(executor, "TIMEOUT", 1)
    for address in ("tcp://127.0.0.1:1", "nonsense://"):
        with pytest.raises(ToolError, match="^no Dask scheduler answers at .*") as caught:
            list(execute(squares(3), scheduler=address, sources=LITTLE))
        assert "\n" not in str(caught.value)


def _distributed():
    """Dask, or a loud skip; where CI runs, it must be installed."""
    try:
        import dask.distributed
    except ImportError:
        assert not os.environ.get("CI"), "dask.distributed is not installed: make setup"
        pytest.skip("dask.distributed is not installed: make setup")
    return dask.distributed


def test_background_tasks_run_beside_this_thread():
    with Background([*squares(2, 3), Task("pid", process_of, (0,))], sources=LITTLE) as background:
        outcomes = list(background.outcomes())
        assert background.done == 3
    assert sorted(o.value for o in outcomes[:2]) == [4, 9] and outcomes[2].value != os.getpid()


def sleep_in(path: Path) -> None:
    path.write_text(str(os.getpid()))
    time.sleep(60)


def test_leaving_background_tasks_ends_their_processes(build):
    note = build / "pid"
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Background([Task("sleep", sleep_in, (note,))]):
        while not note.exists() or not note.read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert time.monotonic() - started < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_what_ends_background_tasks_as_a_whole_is_raised():
    with Background(squares(2), scheduler="tcp://127.0.0.1:1") as background:
        with pytest.raises(ToolError):
            list(background.outcomes())
