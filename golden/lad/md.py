"""Bit-exact model of the mode discrepancy module."""

import itertools
from dataclasses import dataclass
from typing import Any

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
    **sizes: Any,
) -> Discrepancies:
    """MD of a head; see :func:`discrepancies_of_heads`, whose ``m`` it has once."""
    every = np.broadcast_to(m, s.shape)
    one = [0, len(s)]
    return discrepancies_of_heads(s, every, index, mode, count, counters, one, **sizes)[0]


def discrepancies_of_heads(
    s: np.ndarray,
    m: np.ndarray,
    index: np.ndarray,
    mode: np.ndarray,
    count: np.ndarray,
    counters: np.ndarray,
    ends: list[int],
    *,
    n: int,
    window: int,
    updates: int,
    counter_bits: int,
    tables: LineTables,
) -> list[Discrepancies]:
    """MD of the active positions `index`, ascending, of each of several heads of `n` positions.

    s, m
        float16[J] exact scores, and each one's head's maximum.
    mode, count, counters
        int[J], int[J], int[J, I]; ``mode`` is 0 in the window.
    ends
        0, and where each head's positions end.
    updates
        Positions that may change their mode: all but one of them before the window.
    """
    full = (1 << counter_bits) - 1
    counters, rows = counters.copy(), np.arange(len(index))
    x = float_add(s, m, True)
    infinite = ~np.isfinite(s)
    with np.errstate(invalid="ignore"):
        interval = (x[:, None] > tables.bounds).sum(axis=1)
        above = x > 0
    interval[infinite] = 0
    same = interval == mode
    # Counters are never full, but those that a missed step has left in the memory may be.
    risen = counters[rows, interval] + 1 & full
    count = count + same & full
    leaving = index == n - window
    rises = ~same & (risen > count) & (index < n - window)
    before = np.repeat(_counted(rises)[ends[:-1]], np.diff(ends))
    rises &= np.cumsum(rises) - before < updates
    changed = rises | (~same & leaving)
    counters[rows[~same], interval[~same]] = risen[~same]
    overflow = (count == full) | (~same & (risen == full))
    counters[rows[changed], mode[changed]] = count[changed]
    count = np.where(changed, risen, count)
    counters[overflow] >>= 1
    count[overflow] >>= 1
    alpha = float_add(tables.a[interval], tables.a[mode], True)
    beta = float_add(tables.b[interval], tables.b[mode], True)
    arrays = {
        "interval": interval,
        "cf": float_add(float_multiply(alpha, x), beta),
        "changed": changed,
        "minus": np.where(changed, mode, 0),
        "plus": np.where(changed, interval, 0),
        "mode": np.where(changed, interval, mode),
        "count": count,
        "counters": counters,
    }
    found = []
    for start, end in itertools.pairwise(ends):
        of_head = slice(start, end)
        found.append(
            Discrepancies(
                **{name: array[of_head] for name, array in arrays.items()},
                updated=int(np.count_nonzero((rises | leaving)[of_head])),
                above=int(np.count_nonzero(above[of_head])),
                infinite=bool(infinite[of_head].any()),
            )
        )
    return found


def _counted(flags: np.ndarray) -> np.ndarray:
    """How many of the first 0, 1, 2 … flags are set."""
    return np.concatenate([[0], np.cumsum(flags)])
