"""Multipartite tables: a function of a fraction as a sum of small tables."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

SCALE = 40
"""Fraction bits of the exact function values that the tables are made from."""

Function = Callable[[int, int], int]
"""``function(n, k)`` is the function's value at n / 2^k times 2^SCALE, rounded down."""


@dataclasses.dataclass(frozen=True)
class Multipartite:
    """Tables for a function of a fraction of `width` bits, in units of 2^-(width + guard).

    coarse
        Number of upper bits that select a cell; a table has the function in the middle of each.
    fields
        ``(segment, low, high)``: the bits `low` to `high` - 1 add their distance from the middle
        times the slope, a slope for each value of the upper `segment` bits.
    addend
        Added to every result, in quarters of its unit.
    exact
        Whether the fraction is exact. A truncated fraction is taken as half a unit more.
    """

    width: int
    coarse: int
    fields: tuple[tuple[int, int, int], ...]
    addend: int
    guard: int = 0
    exact: bool = False

    def middles(self, function: Function) -> np.ndarray:
        """The table of middles, rounded down after `addend` was added."""
        values = []
        for cell in range(1 << self.coarse):
            middle = ((2 * cell + 1) << (self.width - self.coarse)) - self.exact
            bits = self.width + 1
            while middle % 2 == 0 and bits:
                middle, bits = middle // 2, bits - 1
            quarters = function(middle, bits) >> (SCALE - self.width - self.guard - 2)
            values.append((quarters + self.addend) // 4)
        return np.array(values)

    def offsets(self, function: Function, segment: int, low: int, high: int) -> np.ndarray:
        """Offsets of a field: a row for each slope, a column for each value of the field.

        Offsets of the upper half are rounded down; the lower half's are their complements.
        """
        half, unit = 1 << (high - low - 1), 1 << (low + self.guard)
        ends = [function(i, segment) for i in range((1 << segment) + 1)]
        rows = []
        for start, end in zip(ends[:-1], ends[1:], strict=True):
            slope = (end - start) << segment
            upper = [slope * (2 * i + 1) * unit // (1 << (SCALE + 1)) for i in range(half)]
            rows.append([~value for value in reversed(upper)] + upper)
        return np.array(rows)

    def __call__(self, function: Function, fraction: np.ndarray) -> np.ndarray:
        """The function of ``fraction`` / 2^width."""
        middles, offsets = _tables(self, function)
        result = middles[fraction >> (self.width - self.coarse)]
        for (segment, low, high), table in zip(self.fields, offsets, strict=True):
            below = (fraction >> low) & ((1 << (high - low)) - 1)
            result = result + table[fraction >> (self.width - segment), below]
        return result


@functools.cache
def _tables(tables: Multipartite, function: Function) -> tuple[np.ndarray, list[np.ndarray]]:
    """The middles, and the offsets of each field."""
    fields = [tables.offsets(function, *field) for field in tables.fields]
    return tables.middles(function), fields
