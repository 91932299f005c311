"""Bit-exact model of the dense core: attention over all tokens of a sequence."""

from dataclasses import dataclass

import numpy as np

from golden.attention.decode_core import StepResult, fits
from golden.attention.weighted_rows import WeightedRows


@dataclass(frozen=True)
class DenseReport:
    """Number of tokens in memory after a step, and whether the command was refused."""

    length: int
    error: bool = False


class DenseCore:
    """One layer's cache ``k, v [kv heads, capacity, d]``, of one sequence after the other.

    The smallest step:

    >>> core = DenseCore(capacity=4, heads=2, kv_heads=1, d=2)
    >>> row = np.ones((1, 2), np.float16)
    >>> core.step(np.ones((2, 2), np.float16), row, 3 * row, group=2).o.tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """

    def __init__(self, capacity: int, heads: int, kv_heads: int, d: int):
        self._capacity, self._heads, self._kv_heads = capacity, heads, kv_heads
        self._attend = WeightedRows(capacity)
        self.k, self.v = np.zeros((2, kv_heads, capacity, d), np.float16)
        self.length = 0

    def step(self, q, k, v, *, group: int, restart: bool = False) -> StepResult:
        """The next token's ``q [heads, d]``, times the scale, and ``k, v [kv heads, d]``."""
        before = 0 if restart else self.length
        if before == self._capacity or not fits(len(q), group, self._heads, self._kv_heads):
            return StepResult.refusal(q.shape[1], DenseReport(self.length, error=True))
        self.length = before + 1
        used = slice(len(k))
        self.k[used, before], self.v[used, before] = k, v
        result = self._attend(q, self.k[used, : self.length], self.v[used, : self.length], group)
        return StepResult(*result, [DenseReport(self.length)])
