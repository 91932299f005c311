"""The denominator as the sum of the lanes' differences, and its logarithm: exact in any order."""

import numpy as np

from golden.arith.log2_fixed import log2_fixed

HEADROOM = 14
"""Bits of sums above two limbs."""


class Denominator:
    """Two limbs of the largest term so far, without a carry between them.

    The value is (high 2^limb + low) 2^(limb (number - 1)): at any time the sum of the terms added,
    each without its bits below the lower limb.
    """

    def __init__(self, *, limb: int, fraction: int):
        self._limb, self._fraction = limb, fraction
        self.number: int | None = None
        self.high = self.low = 0

    def add(self, number: int, high: int, low: int) -> None:
        """Add a difference, see :func:`golden.topick.pec.difference`."""
        if self.number is None:
            self.number = number
        ahead = number - self.number
        if ahead >= 0:
            self.high, self.low = _up(self.high, self.low, ahead)
            self.number = number
        else:
            high, low = _up(high, low, -ahead)
        self.high += high
        self.low += low

    @property
    def units(self) -> int:
        """The value in units of the lower limb."""
        return (self.high << self._limb) + self.low

    def log2(self) -> tuple[bool, int]:
        """(known, binary logarithm rounded down): unknown while the sum is 0."""
        if self.number is None or self.units == 0:
            return False, 0
        width = 2 * self._limb + HEADROOM
        options = {"width": width, "precision": self._fraction, "output": self._fraction}
        found = int(log2_fixed(np.array(self.units), **options, rounding="down"))
        return True, found + ((self.number - 1) * self._limb << self._fraction)


def _up(high: int, low: int, limbs: int) -> tuple[int, int]:
    return [(high, low), (0, high)][limbs] if limbs < 2 else (0, 0)
