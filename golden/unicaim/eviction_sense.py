"""Bit-exact model of the minimum search's sense."""

import numpy as np


def eviction_sense(high: np.ndarray) -> int | None:
    """The row that a search of ``high``, bool [steps, rows], finds; None if no line went low."""
    candidates = np.ones(high.shape[1], bool)
    for step in high:
        low = candidates & ~step
        if low.any():
            candidates = low
    return None if high.all() else int(np.argmax(candidates))
