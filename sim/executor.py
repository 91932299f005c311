"""Long jobs as independent tasks, on processes of this machine or on a Dask cluster.

:func:`execute` runs tasks and yields their outcomes. Results are kept in the build folder under a
hash of the function, its arguments, the project's sources and the versions of all tools, so that a
second run resumes where the first one ended.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import multiprocessing
import multiprocessing.connection
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from golden.files import replacing
from sim.arguments import count
from sim.tools import ROOT, ToolError, build_folder, versions
from sim.workers import Worker, call, call_pickled

SOURCES = ("hw", "golden", "sim")
"""Folders whose files decide most results."""


@dataclasses.dataclass(frozen=True)
class Task:
    """One call.

    name
        What people call it.
    function
        A module's function, which other processes can import.
    arguments
        Picklable values whose ``repr`` is their whole content.
    """

    name: str
    function: Callable
    arguments: tuple = ()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a task returned, or the exception that ended it.

    seconds
        Wall-clock time it took when it ran.
    kept
        Whether the value is that of an earlier run.
    """

    task: Task
    value: Any = None
    error: Exception | None = None
    seconds: float = 0.0
    kept: bool = False

    def result(self) -> Any:
        """The value.

        :raises Exception: the task's, if one ended it.
        """
        if self.error is not None:
            raise self.error
        return self.value


SCHEDULER = "run on the Dask cluster with this scheduler, such as tcp://host:8786"
FRESH = "run everything again, whatever earlier runs have kept"


def add_options(command) -> None:
    """The command-line arguments of a long job, for :func:`options`."""
    command.add_argument(
        "--jobs",
        type=count,
        default=os.cpu_count(),
        metavar="N",
        help="tasks at a time on this machine (default: %(default)s, its processors)",
    )
    command.add_argument("--scheduler", metavar="ADDRESS", help=SCHEDULER)
    command.add_argument("--fresh", action="store_true", help=FRESH)


def options(arguments) -> dict:
    """Keyword arguments for :func:`execute`."""
    return {name: getattr(arguments, name) for name in ("jobs", "scheduler", "fresh")}


def execute(
    tasks: Iterable[Task],
    *,
    jobs: int = 1,
    scheduler: str | None = None,
    fresh: bool = False,
    sources: tuple[str, ...] = SOURCES,
    keep: Callable[[Any], bool] = lambda value: True,
    quiet: bool = False,
) -> Iterator[Outcome]:
    """Outcomes of all tasks: those of earlier runs first, then each as it is done.

    Closing the iterator, or an interrupt, ends local workers and all that they started at once.

    jobs
        Worker processes; 1 calls the functions in this process, one after another.
    scheduler
        Address of a Dask scheduler, whose workers run in a copy of this repository. It takes the
        place of local processes.
    fresh
        Whether to ignore what earlier runs have kept.
    sources
        Files and folders of the repository that decide the results.
    keep
        Whether a value is worth keeping. A task that raises is always repeated.
    quiet
        Whether to show no progress bar, as elsewhere than on a terminal.
    :raises ToolError: if the cluster cannot be reached.
    """
    tasks = list(tasks)
    digest = _digest_once(sources)
    with tqdm(total=len(tasks), unit="task", disable=quiet or None, file=sys.stderr) as bar:
        left = []
        for task in tasks:
            outcome = None if fresh else _load(task, digest)
            if outcome is None:
                left.append(task)
            else:
                bar.update()
                yield outcome
        # Closed here, not when it is collected, so that no worker outlives its consumer.
        run = _cluster(left, scheduler, sources, digest) if scheduler else _local(left, jobs)
        try:
            for outcome in run:
                if outcome.error is None and keep(outcome.value):
                    _store(outcome, digest, sources)
                bar.set_description(outcome.task.name)
                bar.update()
                yield outcome
        finally:
            run.close()


def _digest(sources: tuple[str, ...]) -> str:
    """Hash of files and tools that decide results."""
    packages = sorted((d.name, d.version) for d in importlib.metadata.distributions())
    content = hashlib.sha256(repr((versions().replace(sys.prefix, ""), packages)).encode())
    for name in sources:
        files = [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*.*"))
        for path in files:
            if path.is_file() and path.suffix != ".pyc":
                content.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode())
                content.update(path.read_bytes())
    return content.hexdigest()


# In a worker that lives long, of what it has imported, not of what lies on its disk by now.
_digest_once = functools.cache(_digest)


def _path(task: Task, digest: str) -> Path:
    function = f"{task.function.__module__}.{task.function.__qualname__}"
    key = hashlib.sha256(repr((function, task.arguments, digest)).encode()).hexdigest()[:32]
    return build_folder() / "results" / f"{function}_{key}.pickle"


def _load(task: Task, digest: str) -> Outcome | None:
    try:
        value, seconds = pickle.loads(_path(task, digest).read_bytes())
    except FileNotFoundError:
        return None
    return Outcome(task, value, None, seconds, kept=True)


def _store(outcome: Outcome, digest: str, sources: tuple[str, ...]) -> None:
    # Of sources edited meanwhile nobody knows which the task has used.
    if _digest(sources) == digest:
        path = _path(outcome.task, digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(pickle.dumps((outcome.value, outcome.seconds)))


def _local(tasks: list[Task], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from (Outcome(task, *call(task.function, task.arguments)) for task in tasks)
        return
    waiting, running = iter(tasks), {}

    def start(worker: Worker | None) -> None:
        """Give a worker, or a new one, the next task; end it if there is none."""
        task = next(waiting, None)
        if task is not None:
            worker = Worker() if worker is None or worker.ended else worker
            running[worker.pipe] = worker, task
            worker.start(task.function, task.arguments)
        elif worker is not None:
            worker.end()

    try:
        for _ in range(jobs):
            start(None)
        while running:
            for pipe in multiprocessing.connection.wait(list(running)):
                worker, task = running.pop(pipe)
                outcome = Outcome(task, *worker.answer())
                start(worker)
                yield outcome
    finally:
        for pipe in running:
            pipe.close()
        for worker, _ in running.values():
            worker.end()


def _cluster(
    tasks: list[Task], address: str, sources: tuple[str, ...], digest: str
) -> Iterator[Outcome]:
    try:
        from dask.distributed import Client, as_completed
    except ImportError:
        raise ToolError("--scheduler needs dask.distributed: pip install distributed") from None
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ToolError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        futures = {}
        for task in tasks:
            pickled = pickle.dumps((task.function, task.arguments))
            future = client.submit(_call_there, pickled, sources, digest, pure=False)
            futures[future] = task
        try:
            for future in as_completed(futures, loop=client.loop):
                error = future.exception()
                answer = (None, error) if error else pickle.loads(future.result())
                yield Outcome(futures[future], *answer)
        finally:
            client.cancel(list(futures), force=True)


def _call_there(pickled: bytes, sources: tuple[str, ...], digest: str) -> bytes:
    """What a worker of the cluster does."""
    if _digest_once(sources) != digest:
        raise ToolError("a worker of the cluster has other sources or tools than this machine")
    return call_pickled(pickled)
