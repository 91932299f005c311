"""Bit-exact twin of the sense of races: from the lines that are high in each step to addresses."""

import numpy as np


def topk_sense(high: np.ndarray, k: int, fill: bool = True) -> list[int]:
    """Addresses that ``high``, bool [steps, rows], leaves, rising.

    They are the rows high in the last step with ``k`` or fewer, and with ``fill`` the lowest of
    those high in the last step with more, until there are ``k``.
    """
    counts = high.sum(axis=1)
    few, many = (
        high[np.flatnonzero(which)[-1]] if which.any() else np.zeros(high.shape[1], bool)
        for which in (counts <= k, counts > k)
    )
    ties = np.flatnonzero(many & ~few)[: k - np.count_nonzero(few)]
    return np.union1d(np.flatnonzero(few), ties if fill else []).astype(int).tolist()
