"""Number of ones among bits."""

import numpy as np


def population_count(bits: np.ndarray) -> np.ndarray:
    """Over the last axis of zeros and ones."""
    return np.asarray(bits, np.int64).sum(axis=-1)
