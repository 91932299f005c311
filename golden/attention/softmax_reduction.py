"""Maximum and sum of exponentials, tile by tile; see :mod:`hw.attention.softmax_reduction`."""

from dataclasses import dataclass

import numpy as np

from golden.arith.formats import is_nan
from golden.arith.wide_exponent import POWER, inverse
from golden.attention.binary_exponent import FARTHEST, binary_exponent, term


@dataclass(frozen=True)
class Reduced:
    """Reduction of a vector's scores.

    origin
        Octaves of the highest score: -x log2(e), rounded down.
    inverse_sum, sum_exponent
        1 / sum is inverse_sum 2^(-15 - sum_exponent).
    undefined, empty
        A score is NaN or plus infinity; all scores are minus infinity.
    """

    origin: int
    inverse_sum: int
    sum_exponent: int
    undefined: bool
    empty: bool


def softmax_reduction(x: np.ndarray, length: int, tile: int) -> Reduced:
    """Reduction of ``float16[n]``. The longest vector's `length` sets the sum's fraction bits."""
    origin, total = exponential_sum(x, length, tile)
    leading_one = total.bit_length() - 1
    fraction = (total << 12 >> leading_one) & 0xFFF
    return Reduced(
        origin=origin,
        inverse_sum=int(inverse(np.array(fraction))),
        sum_exponent=leading_one - fraction_bits(length),
        undefined=bool((is_nan(x) | np.isposinf(x)).any()),
        empty=origin == FARTHEST,
    )


def fraction_bits(length: int) -> int:
    """Fraction bits of a sum of at most `length` exponentials."""
    return 15 + (length - 1).bit_length()


def exponential_sum(x: np.ndarray, length: int, tile: int) -> tuple[int, int]:
    """The origin, and the sum of 2^(origin - exponent) in units of 2^-fraction_bits."""
    exponent = binary_exponent(x)
    starts = np.arange(0, len(x), tile)
    lowest = np.minimum.accumulate(np.minimum.reduceat(exponent >> POWER, starts))
    added = np.add.reduceat(addend(exponent, np.repeat(lowest, tile)[: len(x)], length), starts)
    total, last_origin = 0, FARTHEST
    for origin, tile_sum in zip(lowest.tolist(), added.tolist(), strict=True):
        drop = last_origin - origin  # correct the sum for a higher maximum
        total = (total >> drop if drop < 32 else 0) + tile_sum
        last_origin = origin
    return last_origin, total


def addend(exponent: np.ndarray, origin: np.ndarray, length: int) -> np.ndarray:
    """The terms of the sum, cut off to its fraction bits."""
    digits, shift = term(exponent, origin)
    return digits << fraction_bits(length) - 15 >> shift
