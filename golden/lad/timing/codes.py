"""Cycles of the scores of keys in a few bits."""

import math

from golden.lad.timing.parts import FOREVER, OTHER, TABLE, Reader
from golden.lad.timing.work import HeadWork, TimingSizes

SCALE = 4
"""Cycles of the reciprocal of the key's peak and its product."""

READ, WRITE, ROWS = -1, -2, -3
"""Steps of a store: a row requested, a row written, all rows here; others are cycles."""


class CodeSource:
    """As :class:`hw.lad.scores.code_scores.CodeScores`.

    A store takes its rows, then the largest magnitude, a product with the key and the shift of the
    code to its place; scores take a row of units each, then the codes, a pair of keys a cycle.
    """

    score_stage = 2
    """Cycles from a result to its score, less one."""

    multiplies = False
    """Whether a row is multiplied as it arrives."""

    def __init__(self, timing: TimingSizes):
        size = timing.sizes
        self._timing, self._d, self._bits = timing, size.d, size.code_bits
        self._reader = Reader(2 * timing.depth)
        step = math.gcd(16, 2 * size.code_bits)
        self._pair, self._row = 2 * size.code_bits // step, 16 // step
        self._steps: list[int] = []  # of a store: what is left of it
        self._awaited = 0  # rows of the store
        self._unit_rows = self._units_left = 0
        self._words = self._loaded = 0
        self._start = self._busy = self._final = self.done = False
        self._waiting = self._following = self._scored = self._old = 0

    # A store

    def store(self, work: HeadWork) -> None:
        """Begin to store the new key."""
        position = work.n - 1
        offset = position * self._bits % 16
        # The peak, its scale, the product with the key, and the code to its place.
        wait = self._timing.element_bits + SCALE + 1 + self._timing.vector + offset
        writes = [WRITE] * (2 + (offset + self._bits > 16))
        reads = [READ if offset else 1, READ if position % self._d else 1]
        self._steps = [1, *reads, wait, ROWS, *writes]

    @property
    def storing(self) -> bool:
        return bool(self._steps)

    @property
    def steps(self) -> int:
        """Steps left of a store."""
        return len(self._steps)

    @property
    def wants(self) -> bool:
        if self._steps:
            return self._steps[0] in (READ, WRITE)
        return self._unit_rows > 0 or self._reader.wants

    @property
    def writes(self) -> bool:
        return bool(self._steps) and self._steps[0] == WRITE

    @property
    def kind(self) -> int:
        """Kind of the row that is requested."""
        return TABLE if self._unit_rows else OTHER

    @property
    def waits(self) -> int:
        """Cycles of a store in which nothing happens without an event."""
        step = self._steps[0] if self._steps else 0
        if step in (READ, WRITE):
            return FOREVER
        return FOREVER if step == ROWS and self._awaited else max(step - 1, 0)

    def skip(self, cycles: int) -> None:
        """Let some of the cycles of a store go by."""
        if self._steps[0] > 0:
            self._steps[0] -= cycles

    @property
    def progress(self) -> tuple:
        """What changes in a cycle without an event in which anything does."""
        flags = self._start, self._busy, self._final, self.done
        return self._reader.progress, self._waiting, self._following, self._scored, flags

    def _tick_store(self, granted: bool, arrives: bool) -> None:
        steps = self._steps
        step = steps[0]
        done = granted
        if step == ROWS:
            done = not self._awaited
        elif step not in (READ, WRITE):
            steps[0] -= 1
            done = not steps[0]
        if done:
            steps.pop(0)
        self._awaited += (granted and step == READ) - arrives

    # Scores

    def begin(self, work: HeadWork, old: int) -> None:
        self._old = old
        self._unit_rows = self._units_left = -(-old // self._d)
        self._words, self._loaded = -(-old * self._bits // 16), 0
        self._start = self._busy = True
        self._final = self.done = False
        self._waiting = self._following = self._scored = 0

    def offers(self, go: bool) -> bool:
        """Whether a pair of keys is to be multiplied."""
        ready = not self._units_left and not self._unit_rows and not self._start
        enough = self._waiting >= self._pair or self._final
        return self._busy and go and ready and self._following < self._old and enough

    def tick(
        self, granted: bool, kind: int | None, taken: bool, go: bool, result: bool, score: bool
    ) -> bool:
        """A cycle; whether a score is under way from now on.

        A request was granted, a row arrives, an operation is taken, there is a result, and a score
        is there.
        """
        if self._steps:
            self._tick_store(granted, kind is not None)
            return False
        if self._busy and self._scored >= self._old:
            self._busy, self.done = False, True
        if score:
            self._scored += 2
        rest = self._waiting - (min(self._pair, self._waiting) if taken else 0)
        ready = rest <= self._pair
        load = self._reader.valid and ready
        self._waiting = rest + (self._row if load else 0)
        if load:
            self._loaded += 1
            self._final = self._loaded == self._words
        if taken:
            self._following += 2
        reads = granted and not self._unit_rows
        self._reader.tick(reads, kind == OTHER, ready)
        if self._start and not self._unit_rows:
            self._start = False
            self._reader.left = self._words
        if granted and self._unit_rows:
            self._unit_rows -= 1
        if kind == TABLE:
            self._units_left -= 1
        return result
