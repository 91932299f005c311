"""2^-x of fixed-point numbers, rounded down or up, in exact integer arithmetic."""

import functools
from math import isqrt

import numpy as np

GUARD = 64  # extra fraction bits, more than the products of roots lose


@functools.cache
def significands(fraction: int, precision: int) -> np.ndarray:
    """For each f the greatest integer below 2^(precision - f / 2^fraction).

    In integers: 2^-f is the product of the roots 2^-1/2, 2^-1/4, ... whose bit in f is set. Roots
    and products are rounded down, by less than 3 and 1 units of the last guard bit. The assertion
    checks that no power is so close to an integer that this matters.
    """
    point = precision + GUARD
    powers, root = [1 << point], isqrt(1 << 2 * point - 1)
    for _ in range(fraction):
        powers = [power * factor >> point for power in powers for factor in (1 << point, root)]
        root = isqrt(root << point)
    found = [power >> GUARD for power in powers]
    assert found[1:] == [power + 4 * fraction >> GUARD for power in powers[1:]]
    return np.array([(1 << precision) - 1, *found[1:]])


def exp2_fixed(
    x: np.ndarray, *, fraction: int, precision: int, output: int, rounding: str
) -> np.ndarray:
    """2^-x for x in units of 2^-fraction, in units of 2^-output.

    The power of x's fraction is bounded to `precision` bits and then shifted: see
    :class:`hw.arith.exp2_fixed.Exp2Fixed` for the equations. `output` is at most 62.
    """
    x = np.asarray(x, np.int64)
    n = np.minimum(x >> fraction, 63)
    below = significands(fraction, precision)[x & ((1 << fraction) - 1)]
    if rounding == "down":
        return below << (output - precision) >> n
    above = (below + 1) << (output - precision)
    return -(-above >> n)
