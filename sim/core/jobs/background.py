"""Tasks on worker processes while this thread does something else."""

import multiprocessing
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Self

from sim.core.jobs.executor import Outcome, Task, execute


class Background:
    """Tasks that run from now on; leaving the ``with`` block ends those that still do.

    options
        Keyword arguments of :func:`sim.core.jobs.executor.execute`.

    ``done`` is the number of tasks that have ended so far.
    """

    def __init__(self, tasks: Sequence[Task], **options):
        self.done = 0
        end, self._end = multiprocessing.Pipe(duplex=False)
        self._outcomes: queue.SimpleQueue[Outcome | Exception | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(tasks, end, options))
        self._thread.start()

    def _run(self, tasks: Sequence[Task], end, options: dict) -> None:
        try:
            for outcome in execute(tasks, quiet=True, end=end, **options):
                self.done += 1
                self._outcomes.put(outcome)
            self._outcomes.put(None)
        except Exception as error:
            self._outcomes.put(error)

    def outcomes(self) -> Iterator[Outcome]:
        """Each task's outcome, waiting for it.

        :raises Exception: the one that ended the execution as a whole.
        """
        while (outcome := self._outcomes.get()) is not None:
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self._end.close()
        self._thread.join()
