"""When a memory of fixed latencies offers its responses."""

import heapq
from typing import Any, Protocol


class Schedule(Protocol):
    """Decides which read of a memory is answered, and from which cycle on.

    Requests have numbers from 0 on, in the order in which they are accepted, over reads and writes.
    """

    def ready(self, cycle: int) -> bool:
        """Whether a request may be accepted in a cycle."""

    def read(self, cycle: int, number: int, address: int) -> None:
        """A read of a row is accepted in a cycle."""

    def write(self, cycle: int, number: int, address: int) -> None:
        """A write of a row is accepted in a cycle."""

    def answer(self, cycle: int) -> int | None:
        """The number of the read to answer from `cycle` on; None if no response is due."""

    def use(self) -> Any:
        """:class:`sim.core.dram.timing.DramUse` of a DRAM; None of a memory without banks."""


class FixedSchedule:
    """The schedule of a :class:`sim.core.memory.MemoryTiming`."""

    def __init__(self, timing):
        self._timing = timing
        self._waiting: list[tuple[int, int]] = []  # (cycle due, number)
        self._ready: list[int] = []
        self._latest_due = self._next_response = 0

    def ready(self, cycle: int) -> bool:
        """Requests never wait."""
        return True

    def read(self, cycle: int, number: int, address: int) -> None:
        due = cycle + self._timing.draw(number)
        if not self._timing.reorder:
            due = self._latest_due = max(due, self._latest_due)
        heapq.heappush(self._waiting, (due, number))

    def write(self, cycle: int, number: int, address: int) -> None:
        """Writes take no time."""

    def answer(self, cycle: int) -> int | None:
        while self._waiting and self._waiting[0][0] <= cycle:
            heapq.heappush(self._ready, heapq.heappop(self._waiting)[1])
        if not self._ready or cycle < self._next_response:
            return None
        self._next_response = cycle + self._timing.interval
        return heapq.heappop(self._ready)

    def use(self) -> None:
        return None
