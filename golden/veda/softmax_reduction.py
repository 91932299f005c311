"""Maximum and sum of exponentials, tile by tile; see :mod:`hw.veda.softmax_reduction`."""

from dataclasses import dataclass

import numpy as np

from golden.arith.formats import is_nan
from golden.arith.wide_exponent import POWER, inverse
from golden.veda.binary_exponent import FARTHEST, binary_exponent, term


@dataclass(frozen=True)
class Reduced:
    """What the scores of a vector come to.

    origin
        Octaves below 1 of the largest, rounded down.
    inverse, order
        1 / sum is inverse 2^(-15 - order).
    undefined, empty
        With a NaN or plus infinity; without a number.
    """

    origin: int
    inverse: int
    order: int
    undefined: bool
    empty: bool


def softmax_reduction(x: np.ndarray, length: int, tile: int) -> Reduced:
    """Of ``float16[n]``. `length`, that of the longest vector, decides where the sum is cut off."""
    origin, total = exponential_sum(x, length, tile)
    order = total.bit_length() - 1
    fraction = (total << 12 >> order) & 0xFFF
    return Reduced(
        origin=origin,
        inverse=int(inverse(np.array(fraction))),
        order=order - places(length),
        undefined=bool((is_nan(x) | np.isposinf(x)).any()),
        empty=origin == FARTHEST,
    )


def places(length: int) -> int:
    """Bits behind the point of a sum of at most so many exponentials."""
    return 15 + (length - 1).bit_length()


def exponential_sum(x: np.ndarray, length: int, tile: int) -> tuple[int, int]:
    """The origin, and the sum of 2^(origin - exponent) in units of 2^-places."""
    exponent = binary_exponent(x)
    starts = np.arange(0, len(x), tile)
    lowest = np.minimum.accumulate(np.minimum.reduceat(exponent >> POWER, starts))
    added = np.add.reduceat(addend(exponent, np.repeat(lowest, tile)[: len(x)], length), starts)
    total, before = 0, FARTHEST
    for origin, part in zip(lowest.tolist(), added.tolist(), strict=True):
        drop = before - origin
        total = (total >> drop if drop < 32 else 0) + part
        before = origin
    return before, total


def addend(exponent: np.ndarray, origin: np.ndarray, length: int) -> np.ndarray:
    """What scores add to the sum, cut off to its places."""
    digits, shift = term(exponent, origin)
    return digits << places(length) - 15 >> shift
