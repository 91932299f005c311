"""Bit-exact model of the maximum, and of the minimum, of floating-point numbers."""

import numpy as np

from golden.arith.formats import canonical, flush, is_nan


def float_max(a: np.ndarray, b: np.ndarray, *, flush_subnormals: bool = False) -> np.ndarray:
    """IEEE 754's maximumNumber: NaN only for two NaNs, plus zero is above minus zero."""
    return extreme(a, b, smaller=False, flush_subnormals=flush_subnormals)


def extreme(
    a: np.ndarray, b: np.ndarray, *, smaller: bool, flush_subnormals: bool = False
) -> np.ndarray:
    """maximumNumber, or with `smaller` minimumNumber."""
    if flush_subnormals:
        a, b = flush(a), flush(b)
    with np.errstate(invalid="ignore"):
        first, second = (a, b) if smaller else (b, a)
        takes_a = first < second
        zeros = (a == 0) & (b == 0)
    takes_a = np.where(zeros, np.signbit(a) == smaller, takes_a)
    takes_a = np.where(is_nan(a), False, np.where(is_nan(b), True, takes_a))
    return canonical(np.where(takes_a, a, b))
