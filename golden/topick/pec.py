"""Bit-exact model of the partial exponential calculator: terms and differences in limbs."""

import numpy as np
from numpy.typing import ArrayLike

from golden.arith.exp2_fixed import exp2_fixed


def term(
    t: ArrayLike, least: ArrayLike, *, fraction: int, precision: int
) -> tuple[np.ndarray, np.ndarray]:
    """``(shift, significand)`` of 2^(t - least), rounded down: significand 2^-(shift + precision).

    t, least
        In units of 2^-fraction.
    """
    minus = np.asarray(least, np.int64) - np.asarray(t, np.int64)
    significand = exp2_fixed(
        minus & ((1 << fraction) - 1),
        fraction=fraction,
        precision=precision,
        output=precision,
        rounding="down",
    )
    return minus >> fraction, significand


def limbs(
    shift: ArrayLike, significand: ArrayLike, *, precision: int, limb: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(number, high, low)``: a term's upper limb, its bits in that limb and in the next lower."""
    first = ~np.asarray(shift, np.int64)  # exponent of the first bit
    number = first // limb
    significand = np.asarray(significand, np.int64)
    above = first - number * limb + 1 - precision  # left shift into the upper limb
    high = significand << np.maximum(above, 0) >> np.maximum(-above, 0)
    low = (significand << (limb + above)) & ((1 << limb) - 1)
    return number, high, low


def difference(
    new: tuple[ArrayLike, ArrayLike],
    old: tuple[ArrayLike, ArrayLike],
    drop: ArrayLike,
    old_valid: ArrayLike,
    *,
    precision: int,
    limb: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(number, high, low)`` of the new term minus the old one, in the limbs of the larger.

    new, old
        Shift and significand of each.
    drop, old_valid
        There is no new term; there is an old term. With neither term, number is the old one's.
    """
    is_new, is_old = np.asarray(drop) == 0, np.asarray(old_valid) != 0
    number, *parts = limbs(*new, precision=precision, limb=limb)
    old_number, *old_parts = limbs(*old, precision=precision, limb=limb)
    upper_new = is_new & (~is_old | (number >= old_number))
    upper = np.where(upper_new, number, old_number)

    def on_grid(at, part, valid):
        high = np.where(valid & (at == upper), part[0], 0)
        low = np.where(valid & (at == upper), part[1], 0)
        return high, low + np.where(valid & (at == upper - 1), part[0], 0)

    high, low = on_grid(number, parts, is_new)
    old_high, old_low = on_grid(old_number, old_parts, is_old)
    return upper, high - old_high, low - old_low
