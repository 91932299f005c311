"""Bit-exact model of the row encoder: rows of FP16 numbers to scales, fine and search codes."""

from typing import NamedTuple

import numpy as np

from golden.tsuru.row_format import LARGEST_SCALE, NOT_FINITE, SCALE_FRACTION

_LIMB = 40
"""Bits of the lower part of a sum of squares, which has up to 80 + log2 d."""
_MIDDLES = (2 * np.arange(8) + 17) ** 2
"""Squares of the middles between significands (8 + f) / 8, in units of 1/256."""


class Rows(NamedTuple):
    """Encoded rows: scales uint8[...], fine codes uint16[..., d], search codes uint8[..., d]."""

    scale: np.ndarray
    fine: np.ndarray
    search: np.ndarray


def encode(x: np.ndarray, fraction: int) -> Rows:
    """Codes of rows float16[..., d]; `fraction` as of :func:`row_format.fine_values`.

    The scale is the root mean square rounded to the nearest, halves up; the fine code's level is
    the nearest to |x| over the scale, halves away from zero; the search code is large if that is at
    least 1. A root mean square that rounds to less than 2^-14 is 0. Codes of rows of zeros, and of
    rows that are not finite, are 0 but for the signs.
    """
    bits = x.view(np.uint16).astype(np.int64)
    negative, field, below = bits >> 15, bits >> 10 & 31, bits & 0x3FF
    finite = (field < 31).all(axis=-1)
    significand = below | (field > 0).astype(np.int64) << 10
    exponent = np.maximum(field, 1)
    scale = np.where(finite, _scales(significand, exponent), NOT_FINITE)
    present = (finite & (scale > 0))[..., None]

    s = scale[..., None]
    # x / s is the quotient times 2^(exponent - s's exponent - 7 - more), whose floor is enough:
    # no level needs more of its bits.
    more = max(fraction - 5, 0)
    quotient = (significand << more) // (8 | s & 7)
    shift = exponent - (s >> SCALE_FRACTION) + fraction - 5 - more
    halves = np.where(
        shift >= 0, quotient << np.clip(shift, 0, 8), quotient >> np.clip(-shift, 0, 31)
    )  # of the smallest levels' distance, rounded down
    one = 4 << fraction
    size = np.where(
        halves < one,
        halves + 1 >> 1,
        np.where(halves < 2 * one, (halves + 2 >> 2) + one // 4, (halves + 4 >> 3) + one // 2),
    )
    size = np.minimum(size, (4 << fraction) - 1)
    fine = np.where(present, size, 0) | negative << fraction + 2
    search = np.where(present, halves >= one, 0) | negative << 1
    return Rows(scale.astype(np.uint8), fine.astype(np.uint16), search.astype(np.uint8))


def _scales(significand: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Scales int64[...] of the elements significand 2^(exponent - 25), int64[..., d]."""
    d = significand.shape[-1]
    ranks = d.bit_length() - 1
    if d & (d - 1):
        raise ValueError(f"d must be a power of two, not {d}")
    # The exact sum of squares, in units of 2^-48, in two parts.
    shift = 2 * exponent - 2
    square = significand * significand
    low = np.where(shift < _LIMB, square << np.minimum(shift, _LIMB), 0) & (1 << _LIMB) - 1
    high = np.where(
        shift < _LIMB,
        square >> np.maximum(_LIMB - shift, 0),
        square << np.maximum(shift - _LIMB, 0),
    )
    low = low.sum(axis=-1)
    high = high.sum(axis=-1) + (low >> _LIMB)
    low &= (1 << _LIMB) - 1
    # The mean is `window` 2^(2 place - 8), 256 <= window < 1024, and the scale 2^(place - 24) at
    # least.
    length = np.where(high > 0, _LIMB + _bit_length(high), _bit_length(low))
    place = (length - 1 - ranks) // 2
    cut = np.maximum(2 * place - 8 + ranks, 0)
    window = np.where(
        cut >= _LIMB,
        high >> np.maximum(cut - _LIMB, 0),
        high << np.clip(_LIMB - cut, 0, 24) | low >> np.minimum(cut, _LIMB),
    )
    steps = np.searchsorted(_MIDDLES, window, side="right")  # halves up
    scale = np.minimum((place - 9 << SCALE_FRACTION) + steps, LARGEST_SCALE)
    return np.where(scale >= 1 << SCALE_FRACTION, scale, 0)


def _bit_length(x: np.ndarray) -> np.ndarray:
    """Bits of integers below 2^53; 0 of 0."""
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)
