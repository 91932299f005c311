"""Levels of the codes that hardware stores: signs and small floats (:mod:`hw.tsuru.row_format`)."""

import functools

import numpy as np

from golden.tsuru.row_format import SCALE_BIAS, SCALE_FRACTION, fine_values, search_values

SEARCH_BITS = 2
FINE_BITS = range(4, 9)


@functools.cache
def float_levels(bits: int) -> np.ndarray:
    """``float64[...]``, ascending, in units of the row's scale; fine codes have 0 twice, here once.

    >>> float_levels(2).tolist(), float_levels(4).tolist()[7:]
    ([-1.5, -0.5, 0.5, 1.5], [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])

    :raises ValueError: for bits that no code has.
    """
    if bits == SEARCH_BITS:
        return np.sort(search_values(np.arange(4)) / 2)
    if bits not in FINE_BITS:
        first, *_, last = FINE_BITS
        raise ValueError(f"float levels have {SEARCH_BITS} or {first} to {last} bits, not {bits}")
    one = np.array(SCALE_BIAS << SCALE_FRACTION, np.uint8)
    levels = fine_values(np.arange(1 << bits), one, bits - 3).astype(np.float64)
    return np.unique(levels) + 0.0  # no -0
