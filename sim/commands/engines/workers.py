"""Threads that run the RTL of several layers at once, while the model goes on."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

Submit = Callable[[Callable[[], object]], None]
"""What an engine gives its runs to."""

WAITING = 256
"""Steps that may wait, with their inputs and expected outputs."""


class Workers:
    """Runs of one layer are done in their order, different layers' side by side.

    The simulator releases Python's lock, so that the threads share the processors.

    done
        Called by the giving thread with the number of runs that have ended.
    """

    def __init__(self, threads: int = 2, done: Callable[[int], None] = lambda count: None):
        self._pools = [ThreadPoolExecutor(1) for _ in range(threads)]
        self._pending: deque[Future] = deque()
        self._done, self._count = done, 0

    def of_layer(self, layer: int) -> Submit:
        """What an engine's layer submits its runs to."""
        pool = self._pools[layer % len(self._pools)]

        def submit(run: Callable[[], object]) -> None:
            self._pending.append(pool.submit(run))
            while len(self._pending) > WAITING or self._pending[0].done():
                self._take()
                if not self._pending:
                    break

        return submit

    def wait(self) -> None:
        """Until all runs have ended.

        :raises Difference: of the first failed run, in the order in which they were given.
        """
        while self._pending:
            self._take()

    def _take(self) -> None:
        self._pending.popleft().result()
        self._count += 1
        self._done(self._count)

    def close(self) -> None:
        """Drop the runs that have not begun and end the threads."""
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)


def at_once(run: Callable[[], object]) -> None:
    """A :data:`Submit` without threads."""
    run()
