"""Bit-exact model of the accumulations: charge sharing in fixed point, means, bit planes."""

import numpy as np


class ChargeAccumulator:
    """Accumulations of ``rows`` rows, integers in units of 2^-``fraction`` scores.

    ``held`` and ``used`` [rows] are for reading; ``held`` is arbitrary for an unused row.
    """

    def __init__(self, rows: int, score_bits: int, fraction: int, share: int) -> None:
        self._width = score_bits + fraction
        self._fraction, self._share = fraction, share
        self.held = np.zeros(rows, np.int64)
        self.used = np.zeros(rows, bool)

    def share(self, values: np.ndarray) -> None:
        """One step's scores [rows]; every accumulation moves towards its row's, rounded half up."""
        distance = (values.astype(np.int64) << self._fraction) - self.held
        self.held += (distance + (1 << self._share >> 1)) >> self._share

    def start(self, row: int, mean: bool) -> None:
        """``row`` starts, from the mean of the others in use, rounded down, or from 0."""
        self.used[row] = False
        others = self.held[self.used]
        self.held[row] = others.sum() // len(others) if mean and len(others) else 0
        self.used[row] = True

    def clear(self) -> None:
        self.used[:] = False

    def planes(self) -> np.ndarray:
        """Steps of a minimum search, bool [width + 1, rows].

        First the unused rows, which remain high, then planes of the accumulations in offset binary,
        the most significant plane first.
        """
        positions = np.arange(self._width)[::-1, None]
        bits = ((self.held + (1 << self._width - 1)) >> positions & 1).astype(bool)
        return np.concatenate([~self.used[None], bits | ~self.used])
