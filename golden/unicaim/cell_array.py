"""Bit-exact twin of the array's behavioural model: races as discharges, spread of devices.

The circuit of section III-B3 in steps: before step n those lines have dropped whose scores are
below -limit + n.
"""

import random
from statistics import NormalDist

import numpy as np

from golden.algorithms.unicaim.spread import WINDOW
from golden.unicaim.cells import key_limit

FRACTION = 4
"""Bits behind the binary point of a cell's error in levels."""


def discharge(
    scores: np.ndarray, used: np.ndarray, k: int, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """A race of ``scores`` [rows], integers within ``limit``.

    Returns which lines are high in each step, bool [steps, rows], and whether they are more than
    ``k``, bool [steps]; it stops with the first step in which they are not.
    """
    thresholds = np.arange(-limit, limit + 2)
    dropped = np.sort(scores[used])
    high = len(dropped) - np.searchsorted(dropped, thresholds)
    steps = int(np.argmax(high <= k)) + 1
    return used & (scores >= thresholds[:steps, None]), high[:steps] > k


def cell_errors(rows: int, d: int, key_bits: int, spread_mv: int, seed: int) -> np.ndarray:
    """Errors of the devices that +1 and that -1 read, in 2^-FRACTION levels: int [rows, d, 2]."""
    deviation = spread_mv / 1000 * 2 * key_limit(key_bits) / WINDOW * 2**FRACTION
    draw = random.Random(seed)
    share = np.array([draw.random() or 0.5 for _ in range(rows * d * 2)])
    normal = [NormalDist(0, deviation).inv_cdf(one) for one in share]
    most = round(6 * deviation)
    return np.clip(np.rint(normal), -most, most).astype(np.int64).reshape(rows, d, 2)


def line_scores(keys: np.ndarray, planes: np.ndarray, errors: np.ndarray, limit: int) -> np.ndarray:
    """Scores of ``keys`` [rows, d] for ``planes`` [bits, d] of digits, place 0 first, as shown.

    ``errors`` are those of ``cell_errors``. Sums are rounded, half up, and kept within ``limit``.
    """
    plus, minus = errors[..., 0], errors[..., 1]
    total = np.zeros(len(keys), np.int64)
    for place, digits in enumerate(planes.astype(np.int64)):
        error = np.where(digits > 0, plus, np.where(digits < 0, minus, (plus + minus) >> 1))
        total += ((keys.astype(np.int64) * digits << FRACTION) + error).sum(axis=1) << place
    return np.clip((total + (1 << FRACTION - 1)) >> FRACTION, -limit, limit)
