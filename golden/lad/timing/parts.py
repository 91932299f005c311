"""Parts that several stages of the timing share: a VPU, a scan of positions, a reorder buffer."""

from collections import deque
from collections.abc import Iterable

import numpy as np

G, KEY, TABLE, OTHER = range(4)
"""Kinds of a row that EAS reads: of G, a whole key, of the estimate's tables, of the estimate."""

FOREVER = 1 << 60
"""Cycles: until an event."""

WRITE = -1
"""A row that is written, and not answered."""


class Dots:
    """A VPU's dot products: one in flight for each credit, results in order."""

    def __init__(self, latency: int, credits: int):
        self._latency = latency
        self.free = credits
        self._due: deque[int] = deque()

    def take(self, cycle: int) -> None:
        self.free -= 1
        self._due.append(cycle + self._latency)

    def valid(self, cycle: int) -> bool:
        return bool(self._due) and self._due[0] <= cycle

    def give(self) -> None:
        """Accept the oldest result; its credit is back in the next cycle."""
        self._due.popleft()
        self.free += 1


class Scan:
    """Positions whose bit is set, row after row: 3 cycles for each row, one for each position."""

    IDLE, ROW, TAKE, OUTPUT = range(4)

    def __init__(self) -> None:
        self._state = self.IDLE
        self._rows: list[int] = []
        self._row = self._left = 0
        self.finished = False

    @staticmethod
    def counts(positions: np.ndarray, rows: int, d: int) -> list[int]:
        """Positions of each row."""
        return np.bincount(positions // d, minlength=rows).tolist()

    @property
    def valid(self) -> bool:
        return self._state == self.OUTPUT and self._left > 0

    @property
    def progress(self) -> tuple:
        """What changes in a cycle in which anything does."""
        return self._state, self._left

    def begin(self, rows: list[int]) -> None:
        self._rows, self._row, self.finished, self._state = rows, 0, False, self.ROW

    def tick(self, ready: bool) -> None:
        if self._state == self.ROW:
            if self._row == len(self._rows):
                self.finished, self._state = True, self.IDLE
            else:
                self._state = self.TAKE
        elif self._state == self.TAKE:
            self._left = self._rows[self._row]
            self._row += 1
            self._state = self.OUTPUT
        elif self._state == self.OUTPUT:
            if not self._left:
                self._state = self.ROW
            elif ready:
                self._left -= 1


class Reader:
    """Consecutive rows of memory: requests while there are slots, rows in order at the output."""

    def __init__(self, depth: int):
        self._depth = depth
        self.left = 0
        self._requested = self._emptied = self._arrived = 0
        self.valid = False

    @property
    def wants(self) -> bool:
        return self.left > 0 and self._requested - self._emptied < self._depth

    @property
    def progress(self) -> tuple:
        """What changes in a cycle without requests and rows in which anything does."""
        return self.valid, self._emptied

    def tick(self, granted: bool, arrives: bool, ready: bool) -> None:
        present = self._arrived > self._emptied
        if not self.valid or ready:
            self.valid = present
            self._emptied += present
        if granted:
            self._requested += 1
            self.left -= 1
        self._arrived += arrives


class Turns:
    """An arbiter: of the inputs that want, the first one behind the last that was granted."""

    def __init__(self, inputs: int):
        self._last = inputs - 1

    def grant(self, wants: int) -> int | None:
        """The input that is granted; bit i of `wants`: input i wants."""
        if not wants:
            return None
        behind = wants >> self._last + 1 << self._last + 1
        chosen = behind or wants
        self._last = (chosen & -chosen).bit_length() - 1
        return self._last


def bits_of(flags: Iterable[bool]) -> int:
    """A number whose bit i is flag i."""
    return sum(flag << number for number, flag in enumerate(flags))
