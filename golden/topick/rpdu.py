"""Bit-exact model of the request and prune decision unit."""

import numpy as np
from numpy.typing import ArrayLike


def prune(
    t: ArrayLike,
    most: ArrayLike,
    threshold: ArrayLike,
    log_denominator: ArrayLike,
    known: ArrayLike,
    *,
    threshold_bits: int,
) -> np.ndarray:
    """Whether tokens are pruned: t + most + threshold < log_denominator, if that is known.

    A threshold of `threshold_bits` ones prunes nothing.
    """
    prunes = (np.asarray(known) != 0) & (np.asarray(threshold) != (1 << threshold_bits) - 1)
    upper = np.asarray(t) + np.asarray(most) + np.asarray(threshold)
    return prunes & (upper < np.asarray(log_denominator))
