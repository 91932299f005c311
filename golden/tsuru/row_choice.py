"""Bit-exact model of the choice of rows by their estimates; see :mod:`hw.tsuru.row_choice`."""

from typing import NamedTuple

import numpy as np

from golden.arith.fixed_to_float import fixed_to_float
from golden.arith.log2_fixed import log2_fixed
from golden.tsuru.row_format import SEARCH_ROWS
from golden.tsuru.row_search import FRACTION

SUM_FRACTION = 24
"""Fraction bits of a sum of powers."""
POWER_BITS = 8
POWERS = np.rint(2.0 ** (POWER_BITS + np.arange(1 << FRACTION) / (1 << FRACTION))).astype(np.int64)
"""2^f of an estimate's fraction, in units of 2^-POWER_BITS."""
SUM_PRECISION = 8
REST_FRACTION = 10
"""Fraction bits, and bits that index the table, of the rest's logarithm."""
LN2_BITS = 16
LN2 = round(np.log(2) * 2**LN2_BITS)
LOWEST = -(1 << 9)
"""Octaves of the least estimate."""


class Sums(NamedTuple):
    """Octaves of the highest estimate, and the sum of 2^(estimate - octaves), int64[head] each, in
    units of 2^-SUM_FRACTION."""

    origin: np.ndarray
    total: np.ndarray


class Chosen(NamedTuple):
    """Which slots are chosen, bool[slot], and the score of the rest, float16[head]."""

    slots: np.ndarray
    rest: np.ndarray


def powers(e: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """2^(e - origin) of estimates int64[head, slot], rounded down; `origin` in octaves."""
    distance = np.minimum(origin - (e >> FRACTION), 63)
    return POWERS[e & (1 << FRACTION) - 1] << SUM_FRACTION - POWER_BITS >> distance


def sums(e: np.ndarray, present: np.ndarray) -> Sums:
    """The sums of estimates int64[head, slot] that are `present`, bool[slot].

    They are added tile by tile of SEARCH_ROWS slots. A tile that raises the origin has the sum so
    far shifted, and cut off.
    """
    starts = np.arange(0, e.shape[1], SEARCH_ROWS)
    octaves = np.where(present, e >> FRACTION, LOWEST)
    origins = np.maximum.accumulate(np.maximum.reduceat(octaves, starts, axis=1), axis=1)
    of_slots = np.repeat(origins, SEARCH_ROWS, axis=1)[:, : e.shape[1]]
    added = np.add.reduceat(powers(e, of_slots) * present, starts, axis=1)
    drops = np.minimum(np.diff(origins, axis=1, prepend=LOWEST), 63)
    total = np.zeros(len(e), np.int64)
    for drop, tile in zip(drops.T, added.T, strict=True):
        total = (total >> drop) + tile
    return Sums(origins[:, -1], total)


def choose(
    e: np.ndarray, present: np.ndarray, always: np.ndarray, threshold: int, width: int
) -> Chosen:
    """Slots whose estimated probability is above 2^-threshold for any head.

    e
        Estimates int64[head, slot] where `present`, bool[slot].
    always
        bool[slot]: chosen whatever the estimate is.
    threshold
        In units of 2^-FRACTION.
    width
        Bits of a sum.
    """
    origin, total = sums(e, present)
    logarithm = log2_fixed(
        total, width=width, precision=SUM_PRECISION, output=FRACTION, rounding="down"
    )
    least = (origin - SUM_FRACTION << FRACTION) + logarithm - threshold
    slots = ((e > least[:, None]).any(axis=0) | always) & present
    taken = powers(e[:, slots], origin[:, None]).sum(axis=1)
    # The sum was cut off where its origin rose, so it may be a little less than its terms.
    left = np.maximum(total - taken, 0)
    return Chosen(slots, rest_score(left, origin, width))


def rest_score(left: np.ndarray, origin: np.ndarray, width: int) -> np.ndarray:
    """ln(left) as float16, of sums with that origin; minus infinity of 0."""
    logarithm = log2_fixed(
        left, width=width, precision=REST_FRACTION, output=REST_FRACTION, rounding="down"
    )
    logarithm = logarithm + (origin - SUM_FRACTION << REST_FRACTION)
    natural = logarithm * LN2 >> REST_FRACTION
    score = fixed_to_float(natural, "fp16", fraction=LN2_BITS)
    return np.where(left == 0, np.float16(-np.inf), score).astype(np.float16)
