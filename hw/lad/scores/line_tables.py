"""Constants of the piecewise linear exponential: lines and accepted ranges (LAD, section III-A)."""

import dataclasses
import functools
import math

from hw.arith.bits.order_key import NAN_KEY
from hw.arith.float_format import FP16
from hw.arith.tables.lines import nearest

HIGHEST_KEY = (1 << FP16.width) - 1
"""The largest order key: no score exceeds it, and as a lower bound it excludes all."""


@dataclasses.dataclass(frozen=True)
class LineTables:
    """Bounds and line of each interval of exp on (-inf, 0], ascending.

    slopes, intercepts
        FP16 bits of a and b in a x + b. Interval 0 has a = b = 0.
    bounds
        Order keys of the bounds between intervals, one fewer than intervals.
    lower, upper
        Order keys: a difference x of key k is accepted by a mode if lower < k <= upper.
    """

    slopes: tuple[int, ...]
    intercepts: tuple[int, ...]
    bounds: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]


@functools.cache
def line_tables(bounds: tuple[float, ...], slack: int) -> LineTables:
    """Least-squares lines of exp between bounds, and the ranges in which each of them is accepted.

    bounds
        Ascending, below 0.
    slack
        In units of 2^-16. An interval's range reaches from each of its bounds as far as its line,
        before rounding, is this close to exp at all FP16 numbers in between. 0: the interval.

    >>> tables = line_tables((-10.0, -6.0, -3.0, -1.0), 0)
    >>> tables.lower[1:] == tables.upper[:-1] == tables.bounds
    True
    """
    lines = [(0.0, 0.0)]
    lines += [_line(low, high) for low, high in zip(bounds, [*bounds[1:], 0.0], strict=True)]
    keys = [_key(bound) for bound in bounds]
    tolerance = slack / 2**16
    lower, upper = [NAN_KEY], []
    for line, key in zip(lines[1:], keys, strict=True):
        # Within the slack the mode's line is as good as the interval's, so that a score just
        # outside makes no position active. The range is closed at its upper end, as the intervals
        # are.
        while _is_close(line, key, tolerance):
            key -= 1
        lower.append(key)
    for line, key in zip(lines[:-1], keys, strict=True):
        while _is_close(line, key + 1, tolerance):
            key += 1
        upper.append(key)
    return LineTables(
        slopes=tuple(nearest(slope, FP16) for slope, _ in lines),
        intercepts=tuple(nearest(intercept, FP16) for _, intercept in lines),
        bounds=tuple(keys),
        lower=tuple(lower),
        upper=(*upper, HIGHEST_KEY),
    )


def _line(low: float, high: float) -> tuple[float, float]:
    """Slope and intercept of the line of least squares to exp; see :mod:`hw.arith.tables.lines`."""
    width, at_low, at_high = high - low, math.exp(low), math.exp(high)
    slope = ((width / 2 - 1) * at_high + (width / 2 + 1) * at_low) * 12 / width**3
    return slope, (at_high - at_low) / width - slope * (low + high) / 2


def _key(number: float) -> int:
    """The order key of a negative number."""
    return HIGHEST_KEY - nearest(number, FP16)


def _is_close(line: tuple[float, float], key: int, tolerance: float) -> bool:
    """Whether the line is within `tolerance` of exp at the negative number of an order key."""
    magnitude = (HIGHEST_KEY >> 1) - key
    if not 0 < magnitude < FP16.infinity:
        return False
    exponent, fraction = divmod(magnitude, 1 << FP16.mantissa)
    significand = fraction + (bool(exponent) << FP16.mantissa)
    x = -math.ldexp(significand, max(exponent, 1) - FP16.bias - FP16.mantissa)
    return abs(line[0] * x + line[1] - math.exp(x)) <= tolerance
