"""Bit-exact twin of the digital array's race: a search for the threshold, a bit of it a step."""

import numpy as np


def search(
    scores: np.ndarray, used: np.ndarray, k: int, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """A race of ``scores`` [rows], integers within ``limit``.

    Returns which rows are at or above the threshold that each step tries, bool [steps, rows], and
    whether they are more than ``k``, bool [steps].
    """
    steps = limit.bit_length() + 1
    # Positive for every row in use, so that a threshold of 0 need not be tried.
    ranks = np.where(used, scores + (1 << (steps - 1)), 0)
    threshold = 0
    high, more = [], []
    for place in reversed(range(steps)):
        high.append(ranks >= threshold + (1 << place))
        more.append(np.count_nonzero(high[-1]) > k)
        threshold += more[-1] << place
    return np.array(high), np.array(more)
