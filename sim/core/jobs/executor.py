"""Long jobs as independent tasks, on processes of this machine or on a Dask cluster.

:func:`execute` runs tasks and yields their outcomes. Results are kept (:mod:`sim.core.jobs.kept`),
so that a second run resumes where the first one ended.
"""

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import pickle
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from tqdm import tqdm

from sim.core.jobs.kept import Results, digest_once
from sim.core.jobs.workers import Worker, call, call_pickled
from sim.core.tools import ToolError

SOURCES = ("hw", "golden", "sim")
"""Folders whose files most results depend on."""


@dataclasses.dataclass(frozen=True)
class Task:
    """One call of a function.

    name
        Name in messages.
    function
        A function of a module, so that other processes can import it.
    arguments
        Picklable values whose ``repr`` is their whole content.
    """

    name: str
    function: Callable
    arguments: tuple = ()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The value of a task, or the exception that ended it.

    seconds
        Wall-clock time of the task.
    kept
        Whether the value was kept by an earlier run.
    """

    task: Task
    value: Any = None
    error: Exception | None = None
    seconds: float = 0.0
    kept: bool = False

    def result(self) -> Any:
        """The value.

        :raises Exception: the one that ended the task.
        """
        if self.error is not None:
            raise self.error
        return self.value


TIMEOUT = 10
"""Seconds to wait for a scheduler."""


def execute(
    tasks: Iterable[Task],
    *,
    jobs: int = 1,
    scheduler: str | None = None,
    fresh: bool = False,
    sources: tuple[str, ...] = SOURCES,
    keep: Callable[[Any], bool] = lambda value: True,
    quiet: bool = False,
    end: Connection | None = None,
) -> Iterator[Outcome]:
    """Outcomes of all tasks: first those kept by earlier runs, then each as it is done.

    Closing the iterator, or an interrupt, ends local workers and their descendants at once.

    jobs
        Worker processes; 1 calls the functions in this process, one after another.
    scheduler
        Address of a Dask scheduler to use in place of local processes. Its workers run in a copy of
        this repository.
    fresh
        Whether to ignore results kept by earlier runs.
    sources
        Files and folders of the repository that the results depend on.
    keep
        Whether to keep a value. A task that raised an exception is always repeated.
    quiet
        Whether to show no progress bar even on a terminal.
    end
        A connection: when it is closed at its other side, local workers end and the iterator with
        them. With it, even one job is a worker process.
    :raises ToolError: if the cluster cannot be reached.
    """
    tasks = list(tasks)
    results = Results(sources)
    with tqdm(total=len(tasks), unit="task", disable=quiet or None, file=sys.stderr) as bar:
        left = []
        for task in tasks:
            found = None if fresh else results.load(task.function, task.arguments)
            if found is None:
                left.append(task)
            else:
                bar.update()
                yield Outcome(task, found[0], None, found[1], kept=True)
        if not left:
            return
        # Closed explicitly, not by the garbage collector, so that workers end at once.
        run = _cluster(left, scheduler, results) if scheduler else _local(left, jobs, end)
        with contextlib.closing(run):
            for outcome in run:
                task = outcome.task
                if outcome.error is None and keep(outcome.value):
                    results.store(task.function, task.arguments, (outcome.value, outcome.seconds))
                bar.set_description(task.name)
                bar.update()
                yield outcome


def _local(
    tasks: list[Task], jobs: int, end: Connection | None = None
) -> Generator[Outcome, None, None]:
    if jobs == 1 and end is None:
        yield from (Outcome(task, *call(task.function, task.arguments)) for task in tasks)
        return
    waiting = iter(tasks)
    running: dict[Any, tuple[Worker, Task]] = {}  # by the worker's pipe

    def start(worker: Worker | None) -> None:
        """Issue the next task to a worker, or to a new one; end it after the last."""
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
            for pipe in multiprocessing.connection.wait([*running, *([end] if end else [])]):
                if pipe is end:
                    return
                worker, task = running.pop(pipe)
                value, error, seconds = worker.answer()
                if worker.ended:
                    error = ToolError(f"{task.name}: {error}")
                outcome = Outcome(task, value, error, seconds)
                start(worker)
                yield outcome
    finally:
        for pipe in running:
            pipe.close()
        for worker, _ in running.values():
            worker.end()


def _cluster(tasks: list[Task], address: str, results: Results) -> Generator[Outcome, None, None]:
    try:
        from dask.distributed import Client, as_completed
    except ImportError:
        raise ToolError("--scheduler needs dask.distributed: pip install distributed") from None
    try:
        client = Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ToolError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        futures = {}
        for task in tasks:
            pickled = pickle.dumps((task.function, task.arguments))
            future = client.submit(
                _call_on_worker, pickled, results.sources, results.digest, pure=False
            )
            futures[future] = task
        try:
            for future in as_completed(futures, loop=client.loop):
                failure = future.exception()
                answer = (None, failure) if failure else pickle.loads(future.result())
                yield Outcome(futures[future], *answer)
        finally:
            client.cancel(list(futures), force=True)


def _call_on_worker(pickled: bytes, sources: tuple[str, ...], digest: str) -> bytes:
    """Runs on a worker of the cluster, whose sources must be the same as this machine's."""
    if digest_once(sources) != digest:
        raise ToolError("a worker of the cluster has other sources or tools than this machine")
    return call_pickled(pickled)
