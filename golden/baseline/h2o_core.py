"""Bit-exact model of the H2O core: attention over heavy hitters and recent tokens."""

from dataclasses import dataclass

import numpy as np

from golden.attention.decode_core import StepResult, fits
from golden.attention.probability import FRACTION, fixed
from golden.attention.weighted_rows import WeightedRows


@dataclass(frozen=True)
class H2oReport:
    """Number of rows of a step, the row of its token in each kv head, whether it was refused."""

    length: int
    rows: np.ndarray
    error: bool = False


class H2oCore:
    """One layer's cache ``k, v [kv heads, capacity, d]``, of one sequence after the other.

    ``sums`` and ``positions`` [kv heads, capacity] belong to the tokens in the rows, the first
    ``length`` of which are in use.
    """

    def __init__(
        self, capacity: int, heads: int, kv_heads: int, d: int, sum_bits: int, position_bits: int
    ):
        self._heads, self._kv_heads = heads, kv_heads
        self._largest, self._tokens = (1 << FRACTION + sum_bits) - 1, 1 << position_bits
        self._attend = WeightedRows(capacity)
        self.k, self.v = np.zeros((2, kv_heads, capacity, d), np.float16)
        self.sums, self.positions = np.zeros((2, kv_heads, capacity), np.int64)
        self._victims, self._rows = np.zeros((2, kv_heads), np.int64)
        self.length = self._target = self._recent = 0
        self._first = 0, 0  # heads and group of the sequence
        self._token = self._tokens - 1

    def resume(self, target: int, recent: int, heads: int, group: int) -> None:
        """Begin as after `target` tokens of a sequence, whose rows are there, with no sums yet."""
        self._target, self._recent, self._first = target, recent, (heads, group)
        self.length, self._token = target, target - 1
        self.sums[:], self.positions[:] = 0, 0

    def step(
        self, q, k, v, *, group: int, restart: bool = False, target: int = 0, recent: int = 0
    ) -> StepResult:
        """The next token's ``q [heads, d]``, times the scale, and ``k, v [kv heads, d]``."""
        ended = (len(q), group) != self._first or self._token == self._tokens - 1
        bad = not 0 < target >= recent if restart else ended
        if bad or not fits(len(q), group, self._heads, self._kv_heads):
            report = H2oReport(self.length, self._rows.copy(), error=True)
            return StepResult.refusal(q.shape[1], report)
        if restart:
            self._target, self._recent, self.length, self._token = target, recent, 0, -1
            self._first = len(q), group
        self._token += 1
        used = np.arange(len(k))
        rows = self._victims[used] if self.length > self._target else self.length
        self.length = min(self.length, self._target) + 1
        self.k[used, rows], self.v[used, rows], self._rows[used] = k, v, rows
        self.sums[used, rows], self.positions[used, rows] = 0, self._token
        n = self.length
        result = self._attend(q, self.k[used, :n], self.v[used, :n], group)
        for head, weights in enumerate(fixed(result[2])):
            sums = self.sums[head // group, :n]
            sums[:] = np.minimum(sums + weights, self._largest)
        self._choose(used)
        return StepResult(*result, [H2oReport(n, self._rows.copy())])

    def _choose(self, used: np.ndarray) -> None:
        """The row that the next token takes from another one, of each kv head used."""
        for kv_head in used:
            positions = self.positions[kv_head, : self.length]
            old = np.flatnonzero(self._token - positions >= self._recent)
            if len(old):
                order = np.lexsort((positions[old], self.sums[kv_head, old]))
                self._victims[kv_head] = old[order[0]]
