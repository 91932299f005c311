"""FP16 scores as exponents of two; see :mod:`hw.attention.binary_exponent`."""

import numpy as np

from golden.arith import exp2_fixed
from golden.arith.formats import to_bits
from golden.arith.wide_exponent import LOG2_E, POWER

FARTHEST = 2**17 - 1
"""Octaves of minus infinity, of plus infinity and of NaN: e^x = 2^-131071."""


def binary_exponent(x: np.ndarray) -> np.ndarray:
    """``int64``: -x log2(e) of ``float16`` in units of 2^-12, rounded down.

    Infinities and NaN give FARTHEST octaves and the largest fraction.
    """
    bits = to_bits(x).astype(np.int64)
    exponent, mantissa = bits >> 10 & 31, bits & 1023
    product = (1024 | mantissa) * LOG2_E
    magnitude = product >> 32 - exponent
    value = np.where((bits >> 15 == 0) & (bits != 0), ~magnitude, magnitude)
    return np.where(exponent == 31, (FARTHEST + 1 << POWER) - 1, value)


def term(exponent: np.ndarray, origin: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    """2^(origin - exponent) = digits 2^-(15 + shift).

    exponent, origin
        ``int64``: of :func:`binary_exponent`, and the octaves of the highest score.
    """
    table = exp2_fixed.significands(POWER, POWER + 2)
    digits = 2 * table[exponent & ((1 << POWER) - 1)] + 1
    return digits, np.minimum((exponent >> POWER) - origin, 63)
