"""Significands with a wide exponent; see :mod:`hw.arith.wide_exponent`."""

import numpy as np

from golden.arith import exp2_fixed
from golden.arith.formats import from_bits
from golden.arith.multipartite import Multipartite
from golden.arith.reciprocal import double_reciprocal

FRACTION = 14
"""Fraction bits of an exponential's argument."""

LOG2_E = 3 * (2**18 - 2**13 - 2**11 + 2**8 - 2**5 + 1)
"""log2(e) in units of 2^-19."""

POWER = 12
"""Fraction bits of the power of two; the significand has three more."""

INVERSE = Multipartite(12, 7, ((6, 3, 5), (5, 0, 3)), 6, 2)
"""2 / (1 + f) of a fraction that was truncated to 12 bits."""

INVERSE_ROOT = Multipartite(13, 7, ((6, 3, 6), (4, 0, 3)), 8, 1)
"""2 / sqrt(u) of a truncated number, 1 <= u < 4; see double_root."""


def powers(argument: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """e^-x of x in units of 2^-FRACTION: significand in units of 2^-(POWER + 3), and shift.

    e^-x is about significand 2^-shift; significands are at least a half and below one.
    """
    dropped = 19 + FRACTION - POWER
    power = (np.asarray(argument, np.int64) * LOG2_E + (1 << (dropped - 1))) >> dropped
    table = exp2_fixed.significands(POWER, POWER + 2)
    return 2 * table[power & ((1 << POWER) - 1)] + 1, power >> POWER


def one_plus(significand: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """1 + p of powers p as :func:`powers` returns them: fraction of 12 bits, and exponent."""
    small = shift >= 0  # p below one
    power = np.clip(-shift, 0, 63)  # the sum's exponent, or one more
    sum_ = np.where(
        small,
        (1 << 15) + (significand >> np.clip(shift, 0, 63)),
        significand + ((1 << 15) >> power),
    )  # in units of 2^(power - 15): from a half to two
    below_one = sum_ < 1 << 15
    return ((sum_ << below_one) >> 3) & 0xFFF, power - below_one


def inverse(fraction: np.ndarray) -> np.ndarray:
    """2 / (1 + f) of a fraction of 12 bits, in units of 2^-14."""
    return INVERSE(double_reciprocal, fraction)


def round_fp16(digits: np.ndarray, width: int, field: np.ndarray) -> np.ndarray:
    """digits 2^(field - 15 - (width - 1)) as ``float16``, ties up; infinite if too large.

    Of `width` bits of digits the highest or the next one is set, unless the result is subnormal.
    """
    left = ((digits >> (width - 1)) == 0) & (field > 1)
    window = (digits << left) >> (width - 12)
    base = np.maximum(field - 1 - left, 0)
    window >>= np.clip(1 - field, 0, 15)
    total = np.where(base > 29, 31 << 10, (base << 10) + ((window + 1) >> 1))
    return from_bits(np.minimum(total, 31 << 10).astype(np.uint16), np.float16)
