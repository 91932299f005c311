"""Straight lines over intervals."""

import numpy as np

from golden.arith.float_multiply_add import float_multiply_add
from golden.arith.formats import from_bits, is_nan, to_bits


def piecewise_linear(
    x: np.ndarray,
    bounds: np.ndarray,
    slopes: np.ndarray,
    intercepts: np.ndarray,
    *,
    flush_subnormals: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The line of each x's interval, rounded once, and the interval's number.

    An interval includes its upper bound; `bounds` has one entry fewer than there are intervals. All
    arrays have x's dtype. A NaN has the interval of the infinity of its sign; an infinity on a line
    with slope 0 gives the line's intercept.
    """
    nan = is_nan(x)
    sign = to_bits(x) >> (8 * x.dtype.itemsize - 1)
    number = np.where(nan, np.array(0, x.dtype), x).astype(np.float64)
    interval = np.searchsorted(bounds.astype(np.float64), number, side="left")
    interval = np.where(nan, np.where(sign == 1, 0, len(bounds)), interval)
    slope, intercept = slopes[interval], intercepts[interval]
    level = slope.astype(np.float64) == 0
    x = np.where(level & ~nan, np.array(0, x.dtype), x)
    return float_multiply_add(slope, x, intercept, flush_subnormals=flush_subnormals), interval


def lines_of(bits: tuple[tuple[int, ...], ...], dtype) -> list[np.ndarray]:
    """Bounds, slopes and intercepts from the bits that hardware is generated from."""
    return [from_bits(np.array(values), dtype) for values in bits]
