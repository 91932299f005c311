"""Bit-exact model of the mode discrepancy module."""

from dataclasses import dataclass

import numpy as np

from golden.arith.float_add import float_add
from golden.arith.float_multiply import float_multiply
from golden.lad.tables import LineTables


@dataclass(frozen=True)
class Discrepancies:
    """Results for the active positions of a head-step, ascending, arrays ``[J, ...]``.

    interval
        Interval of the exact score less m.
    cf
        float16, factor of V.
    changed
        The mode changes from `minus` to `plus`; both 0 elsewhere.
    mode, count, counters
        New ones; ``counters`` [J, I] without the mode's own, which is out of date.
    updated, above
        Numbers of positions: that changed, and the one that leaves the window; with x above 0.
    infinite
        Whether a score is infinite or NaN.
    """

    interval: np.ndarray
    cf: np.ndarray
    changed: np.ndarray
    minus: np.ndarray
    plus: np.ndarray
    mode: np.ndarray
    count: np.ndarray
    counters: np.ndarray
    updated: int
    above: int
    infinite: bool


def discrepancies(
    s: np.ndarray,
    m: np.ndarray | np.floating,
    index: np.ndarray,
    mode: np.ndarray,
    count: np.ndarray,
    counters: np.ndarray,
    *,
    n: int,
    window: int,
    updates: int,
    counter_bits: int,
    tables: LineTables,
) -> Discrepancies:
    """MD of the active positions `index`, ascending, of a head of `n` positions.

    s, m
        float16[J] exact scores, and the maximum.
    mode, count, counters
        int[J], int[J], int[J, I]; ``mode`` is 0 in the window.
    updates
        Positions that may change their mode: all but one of them before the window.
    """
    full = (1 << counter_bits) - 1
    counters, rows = counters.copy(), np.arange(len(index))
    x = float_add(s, m, True)
    infinite = ~np.isfinite(s)
    with np.errstate(invalid="ignore"):
        interval = (x[:, None] > tables.bounds).sum(axis=1)
        above = int((x > 0).sum())
    interval[infinite] = 0
    same = interval == mode
    # Counters are never full, but those that a missed step has left in the memory may be.
    risen = counters[rows, interval] + 1 & full
    count = count + same & full
    leaving = index == n - window
    rises = ~same & (risen > count) & (index < n - window)
    rises &= np.cumsum(rises) < updates
    changed = rises | (~same & leaving)
    counters[rows[~same], interval[~same]] = risen[~same]
    overflow = (count == full) | (~same & (risen == full))
    counters[rows[changed], mode[changed]] = count[changed]
    count = np.where(changed, risen, count)
    counters[overflow] >>= 1
    count[overflow] >>= 1
    alpha = float_add(tables.a[interval], tables.a[mode], True)
    beta = float_add(tables.b[interval], tables.b[mode], True)
    return Discrepancies(
        interval,
        float_add(float_multiply(alpha, x), beta),
        changed,
        np.where(changed, mode, 0),
        np.where(changed, interval, 0),
        np.where(changed, interval, mode),
        count,
        counters,
        int((rises | leaving).sum()),
        above,
        bool(infinite.any()),
    )
