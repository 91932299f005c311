"""Functions as straight lines over intervals: bounds and coefficients, in a format's bits."""

import dataclasses
import functools
import math
from collections.abc import Callable
from fractions import Fraction

from hw.arith.float_format import FloatFormat
from hw.parameters import require


@dataclasses.dataclass(frozen=True)
class Lines:
    """The line ``slopes[i] * x + intercepts[i]``, where `i` is the number of bounds below x.

    bounds
        Upper bounds of all intervals but the last, increasing.
    slopes, intercepts
        One of each for each interval; the first interval begins at minus infinity.

    All are bits of one floating-point format, finite.
    """

    bounds: tuple[int, ...]
    slopes: tuple[int, ...]
    intercepts: tuple[int, ...]

    def __post_init__(self):
        counts = len(self.bounds) + 1, len(self.slopes), len(self.intercepts)
        rule = "there must be one bound fewer than slopes, and as many slopes as intercepts"
        require(counts[0] == counts[1] == counts[2], rule, counts)


def nearest(value: float, float_format: FloatFormat) -> int:
    """Bits of a finite number rounded to nearest even, saturated to the largest number."""
    magnitude = Fraction(abs(value))
    sign = int(math.copysign(1, value) < 0) << (float_format.width - 1)
    if not magnitude:
        return sign
    exponent = max(math.frexp(abs(value))[1] - 1, 1 - float_format.bias)
    # Subnormals have the lowest normal exponent; a carry out of the mantissa increments it.
    steps = round(magnitude / Fraction(2) ** (exponent - float_format.mantissa))
    bits = steps + (exponent + float_format.bias - 1 << float_format.mantissa)
    return sign | min(bits, float_format.largest)


@functools.cache
def exponential(intervals: int, float_format: FloatFormat) -> Lines:
    """e^x on (-inf, 0]: the first line is 0, the others are least-squares fits.

    With u = e^(x/2), bounds evenly spaced in u make the largest error of every line about the same,
    as the curvature of e^x is u^2 and an interval's width about 2 du / u. With the first bound at
    half a step, taking 0 below it is off by about as much. So for I intervals

        bounds[j] = 2 ln((2j + 1) / (2I - 1)),      largest error about 1.7 / (2I - 1)^2

    The line of least squares against e^x over (l, h), with c and w the middle and width, is

        slope = 12 / w^3 ((w/2 - 1) e^h + (w/2 + 1) e^l)
        intercept = (e^h - e^l) / w - c slope
    """
    ends = [2 * math.log((2 * j + 1) / (2 * intervals - 1)) for j in range(intervals)]
    slopes, intercepts = [0.0], [0.0]
    for low, high in zip(ends[:-1], ends[1:], strict=True):
        width, at_low, at_high = high - low, math.exp(low), math.exp(high)
        tilt = (width / 2 - 1) * at_high + (width / 2 + 1) * at_low
        slopes.append(12 / width**3 * tilt)
        intercepts.append((at_high - at_low) / width - (low + high) / 2 * slopes[-1])
    return Lines(
        *(
            tuple(nearest(value, float_format) for value in values)
            for values in (ends[:-1], slopes, intercepts)
        )
    )


FUNCTIONS: dict[str, Callable[[int, FloatFormat], Lines]] = {"exp": exponential}
