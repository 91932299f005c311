"""Cycles of the core by the control of its parts; see :class:`TsuruCoreParameters`.

No formula says when the choice of a batch, the search of the next one and the lanes have which
words. So their control goes from one cycle to the next here, without any data.
"""

import dataclasses
from collections import deque
from collections.abc import Sequence

from hw.tsuru.lane_cycles import Group
from hw.tsuru.part_cycles import WAITING, Batch, Choice, Feed, Fifo, Requests, Search

BATCHES = 4
"""Batches that may wait for a part."""
ROWS = 16
"""Chosen rows that may wait for their requests."""
RESTS = 2


class CoreCycles:
    """The core from one cycle to the next; inputs are valid in time, and nothing stalls."""

    def __init__(self, p, memory_latency: int):
        self._p = p
        self.cycle = 0
        self.queries, self.queries_left = Fifo(2 * p.parallel), 0
        self.chosen, self.rests = Fifo(ROWS), Fifo(RESTS)
        self.batches = [Fifo(BATCHES) for _ in range(4)]
        self.feeds, self.results = Fifo(WAITING), Fifo(2)
        self._fifos = [self.queries, self.chosen, self.rests, *self.batches]
        self._fifos += [self.feeds, self.results]
        self._search = Search(p, memory_latency)
        self.choice = Choice(p.choice)
        self._requests = Requests(p.supply)
        self._feed = Feed(p.supply, memory_latency)
        self._group = Group(p)

    def run(self, steps: Sequence["Step | None"], pause: int) -> int:
        """Cycles from the first command offered to the last result or report.

        steps
            None for a command that is refused.
        pause
            Cycles from a step's last beat to the next command; 0 if commands are valid in time.
        """
        waiting, end, state, offer = deque(steps), 0, "idle", 0
        runs: deque[Batch] = deque()
        delivered = [False] * len(self.batches)
        left = 0  # results of the steps so far that have not left
        store = 0
        if not pause:
            self.queries_left = sum(step.heads for step in steps if step is not None)
        while waiting or state != "idle" or left:
            if state == "idle" and waiting and self.cycle >= offer and not (pause and left):
                step = waiting.popleft()
                state = "refused" if step is None else "store"
                if step is not None:
                    store, left = step.store_cycles, left + step.heads
                    runs.extend(batch for batch in step.batches for _ in range(2))
                    if pause:
                        self.queries_left += step.heads
            elif state == "store":
                store -= 1
                state = "store" if store else "read"
            elif state == "read":
                self._run(runs, delivered)
                state = "read" if runs else "report"
            elif state == "refused" or (state == "report" and self._group.ended):
                state, end = "idle", max(end, self.cycle)
                self._group.ended = False
                offer = end + pause if pause else self.cycle + 1
            gone = self._tick()
            if gone:
                left, end = left - 1, max(end, self.cycle)
                offer = max(offer, end + pause) if pause else offer
            self.cycle += 1
        return end + 1

    def _run(self, runs: deque, delivered: list) -> None:
        """A batch enters all queues with its run of K; its run of V only takes a cycle."""
        if len(runs) % 2:
            runs.popleft()
            return
        for n, queue in enumerate(self.batches):
            if queue.ready and not delivered[n]:
                queue.push(runs[0])
                delivered[n] = True
        if all(delivered):
            delivered[:] = [False] * len(delivered)
            runs.popleft()

    def _tick(self) -> bool:
        """A cycle of all parts, each after those whose readiness it needs.

        Returns whether a result left.
        """
        taken = self._group.tick(self, self._feed.row)
        requested = self._requests.tick(self, self._feed.words)
        self._feed.tick(self, taken)
        self._search.tick(self, not requested)
        self.choice.tick(self)
        for fifo in self._fifos:
            fifo.clock()
        return self._group.left == self.cycle


@dataclasses.dataclass
class Step:
    """Cycles of its new rows' words, and its batches."""

    store_cycles: int
    batches: list[Batch]

    @property
    def heads(self) -> int:
        return sum(batch.heads for batch in self.batches)
