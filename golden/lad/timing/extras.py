"""Cycles of jobs that are not tokens: rows loaded ahead, linear layers."""

import numpy as np

from golden.lad.timing.parts import KEY, G
from golden.lad.timing.positions import Ahead
from golden.lad.timing.work import JobWork, TimingSizes

IDLE, WORDS, AWAITS, KEYS, VALUES = range(5)


class Prefetch:
    """As :class:`hw.lad.prefetch.Prefetch`: a row of G, then K and V of its active positions."""

    def __init__(self, timing: TimingSizes, ahead: Ahead):
        self._d, self._most = timing.sizes.d, timing.sizes.prefetch
        self._ahead = ahead
        self._state = IDLE
        self._head = self._row = self._room = self._n = 0
        self._positions = np.zeros(0, int)
        self._left: list[int] = []
        self._awaited = 0

    @property
    def busy(self) -> bool:
        return self._state != IDLE or self._awaited > 0

    def begin(self, head: int, positions: np.ndarray, job: JobWork) -> None:
        """Load rows of a head's active positions."""
        self._head, self._positions, self._n = head, positions, job.n
        self._room = min(job.most, self._most - len(self._ahead.tags))
        self._row, self._state = 0, WORDS

    def wants(self) -> int | None:
        """Kind of the row that is requested."""
        if self._state == WORDS:
            return G if self._row * self._d < self._n and self._room > 0 else None
        if self._state == VALUES or (self._state == KEYS and self._left and self._room > 0):
            return KEY
        return None

    def tick(self, granted: bool, kind: int | None) -> None:
        """A cycle in which a request was granted, or a row of a kind arrives."""
        wants, state = self.wants() is not None, self._state
        self._awaited += granted - (kind is not None)
        if state == WORDS:
            if granted:
                self._state = AWAITS
            elif not wants:
                self._state = IDLE
        elif state == AWAITS:
            if kind == G:
                here = self._positions // self._d == self._row
                self._left = self._positions[here].tolist()
                self._state = KEYS
        elif state == KEYS:
            if granted:
                self._state = VALUES
            elif not wants:
                self._row, self._state = self._row + 1, WORDS
        elif state == VALUES and granted:
            self._ahead.tags.append((self._head, self._left.pop(0)))
            self._room -= 1
            self._state = KEYS


LINEAR_LATENCY = 7
"""Cycles of a linear layer besides its rows and the VPU's: the command, the memory, the sum."""


class Linear:
    """As :class:`hw.lad.linear.Linear`, which has the port for itself: a row of weights a cycle."""

    def __init__(self, timing: TimingSizes):
        self._dot = timing.dot
        self._at = 0
        self.active = False
        self.finished = 0  # the cycle of the last sums

    def begin(self, cycle: int, job: JobWork) -> None:
        """A layer is accepted in this cycle; pieces of the vectors follow, then the weights."""
        self.finished = cycle + (job.vectors + job.rows) * job.pieces + self._dot + LINEAR_LATENCY
        self.active = True

    def tick(self, cycle: int) -> None:
        if self.active and cycle == self.finished:
            self.active = False
