"""Bit-exact model of the cell array: top-k searches as discharges, spread of devices.

The circuit of section III-B3 in steps: before step n those lines have dropped whose scores are
below -limit + n. The lines of ``golden.unicaim.sense_line`` drop in this order where levels are
programmed by equal steps of current, at times A / (limit - score), not in equal steps of time.
"""

import random
from statistics import NormalDist

import numpy as np

from golden.algorithms.unicaim.spread import WINDOW
from golden.unicaim.cells import key_limit

FRACTION = 4
"""Fraction bits of a cell's error, which is in key levels."""


def discharge(
    scores: np.ndarray, used: np.ndarray, k: int, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """The discharge for ``scores`` [rows], integers within ``limit``.

    Returns which lines are high in each step, bool [steps, rows], and whether they are more than
    ``k``, bool [steps]; it stops with the first step in which they are not.
    """
    thresholds = np.arange(-limit, limit + 2)
    dropped = np.sort(scores[used])
    high = len(dropped) - np.searchsorted(dropped, thresholds)
    steps = int(np.argmax(high <= k)) + 1
    return used & (scores >= thresholds[:steps, None]), high[:steps] > k


def cell_errors(rows: int, d: int, key_bits: int, spread_mv: int, seed: int) -> np.ndarray:
    """Errors of the devices that +1 and -1 read, in 2^-FRACTION levels: int [rows, d, 2]."""
    deviation = spread_mv / 1000 * 2 * key_limit(key_bits) / WINDOW * 2**FRACTION
    draw = random.Random(seed)
    share = np.array([draw.random() or 0.5 for _ in range(rows * d * 2)])
    normal = [NormalDist(0, deviation).inv_cdf(one) for one in share]
    most = round(6 * deviation)
    return np.clip(np.rint(normal), -most, most).astype(np.int64).reshape(rows, d, 2)


def line_scores(keys: np.ndarray, planes: np.ndarray, errors: np.ndarray, limit: int) -> np.ndarray:
    """Scores of ``keys`` [rows, d] as their lines show them, for ``planes`` [bits, d] of digits.

    Plane 0 is the least significant one. ``errors`` are as ``cell_errors`` returns them. Sums are
    rounded, half up, and clipped to ``limit``.
    """
    plus, minus = errors[..., 0], errors[..., 1]
    total = np.zeros(len(keys), np.int64)
    for position, digits in enumerate(planes.astype(np.int64)):
        error = np.where(digits > 0, plus, np.where(digits < 0, minus, (plus + minus) >> 1))
        total += ((keys.astype(np.int64) * digits << FRACTION) + error).sum(axis=1) << position
    return np.clip((total + (1 << FRACTION - 1)) >> FRACTION, -limit, limit)
