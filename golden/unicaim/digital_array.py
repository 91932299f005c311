"""Bit-exact model of the digital array's search: one bit of the threshold per step."""

import numpy as np


def search(
    scores: np.ndarray, used: np.ndarray, k: int, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """The search over ``scores`` [rows], integers within ``limit``.

    Returns which rows are at or above the threshold that each step tries, bool [steps, rows], and
    whether they are more than ``k``, bool [steps].
    """
    steps = limit.bit_length() + 1
    # In offset binary. Positive in all rows in use, so that a threshold of 0 need not be tried.
    offset = np.where(used, scores + (1 << (steps - 1)), 0)
    threshold = 0
    high, too_many = [], []
    for position in reversed(range(steps)):
        high.append(offset >= threshold + (1 << position))
        too_many.append(bool(np.count_nonzero(high[-1]) > k))
        threshold += too_many[-1] << position
    return np.array(high), np.array(too_many)
