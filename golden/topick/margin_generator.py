"""Bit-exact model of the margin generator, and the codes of scales and thresholds."""

import functools
import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike


def scaled_margins(
    q: np.ndarray,
    mantissa: ArrayLike,
    shift: ArrayLike,
    *,
    bits: int,
    chunk_bits: int,
    base: int,
) -> tuple[np.ndarray, np.ndarray]:
    """``(most, least)``: margins of all chunks but the last as binary logarithms.

    c M_max and -c M_min, c = mantissa 2^-(base + shift), both rounded up, int64[..., chunks - 1].
    With r bits unknown, M_max is 2^r - 1 times the sum of the positive q, and M_min of the
    negative ones.

    q
        int64[..., d]; `mantissa` and `shift` int64[...].
    """
    q = np.asarray(q, np.int64)
    reach = (1 << bits - chunk_bits * np.arange(1, bits // chunk_bits)) - 1
    right = (base + np.asarray(shift))[..., None]
    sums = np.maximum(q, 0).sum(axis=-1), np.maximum(-q, 0).sum(axis=-1)
    most, least = (-(-((total * mantissa)[..., None] * reach) >> right) for total in sums)
    return most, least


def scale_code(c: float, *, base: int, scale_bits: int, shift_bits: int) -> tuple[int, int]:
    """Mantissa and shift with mantissa 2^-(base + shift) nearest to `c`; the largest code if `c`
    is larger."""
    if not c > 0:
        raise ValueError(f"a scale must be above 0, not {c}")
    most = (1 << scale_bits) - 1
    for shift in reversed(range(1 << shift_bits)):
        mantissa = round(c * 2.0 ** (base + shift))
        if mantissa <= most:
            return mantissa, shift
    return most, 0


@functools.cache
def threshold_code(threshold: float, *, fraction: int, threshold_bits: int) -> int:
    """-log2(threshold) in units of 2^-fraction, rounded up.

    The largest code prunes nothing: it means 0 and thresholds too small for other codes.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be at least 0 and below 1, not {threshold}")
    most = (1 << threshold_bits) - 1
    if threshold == 0 or -math.log2(threshold) * 2**fraction > most:
        return most
    power = Fraction(threshold) ** (1 << fraction)
    # The least code with 2^code >= 1 / power.
    return min(most, (-(-power.denominator // power.numerator) - 1).bit_length())
