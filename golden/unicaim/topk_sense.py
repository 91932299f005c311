"""Bit-exact model of the top-k sense: from the lines that are high in each step to addresses."""

import numpy as np


def topk_sense(high: np.ndarray, k: int, fill: bool = True) -> list[int]:
    """Addresses of the rows selected by a search ``high``, bool [steps, rows], ascending.

    They are the rows high in the last step with ``k`` or fewer, and with ``fill`` the lowest of
    those high in the last step with more, until there are ``k``.
    """
    counts = high.sum(axis=1)
    winners, with_ties = (
        high[np.flatnonzero(which)[-1]] if which.any() else np.zeros(high.shape[1], bool)
        for which in (counts <= k, counts > k)
    )
    ties = np.flatnonzero(with_ties & ~winners)[: k - np.count_nonzero(winners)]
    return np.union1d(np.flatnonzero(winners), ties if fill else []).astype(int).tolist()
