"""Constants of LAD's piecewise linear exponential, rounded as in the hardware."""

import functools
from dataclasses import dataclass

import numpy as np

from golden.algorithms.lad.accepted_ranges import accepted_ranges
from golden.algorithms.lad.piecewise_exp import PiecewiseExp


@dataclass(frozen=True, eq=False)
class LineTables:
    """Line of each interval, ascending: float16[I], `bounds` float16[I - 1].

    a, b
        The line a x + b; interval 0 has zeros. ``float64[I]`` in tables without rounding.
    bounds
        Between intervals.
    lower, upper
        A difference x is accepted by a mode if lower < x <= upper; ``lower[0]`` is -inf and
        ``upper[-1]`` inf.
    """

    a: np.ndarray
    b: np.ndarray
    bounds: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    def __len__(self) -> int:
        return len(self.a)


@functools.cache
def line_tables(bounds: tuple[float, ...], slack: int, *, exact: bool = False) -> LineTables:
    """Tables for inner `bounds`, ascending and below 0, and a `slack` in units of 2^-16.

    An interval's accepted range reaches from each of its bounds as far as its line, before
    rounding, is within the slack of exp at all float16 numbers in between. With
    `exact`, a and b are not rounded.

    >>> tables = line_tables((-10.0, -6.0, -3.0, -1.0), 0)
    >>> tables.lower.tolist(), tables.upper.tolist()
    ([-inf, -10.0, -6.0, -3.0, -1.0], [-10.0, -6.0, -3.0, -1.0, inf])
    """
    exp = PiecewiseExp(bounds)
    # A flat line may be close to exp down to the lowest number: then its range begins at -inf.
    ranges = accepted_ranges(bounds, slack / 2**16)
    lower, upper = (ends.astype(np.float16) for ends in ranges)
    kind = np.float64 if exact else np.float16
    return LineTables(
        exp.a.astype(kind), exp.b.astype(kind), np.array(bounds, np.float16), lower, upper
    )
