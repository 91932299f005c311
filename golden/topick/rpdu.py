"""Bit-exact twin of the request and prune decision unit."""

import numpy as np


def prune(
    t: np.ndarray,
    most: np.ndarray,
    threshold: np.ndarray,
    log_denominator: np.ndarray,
    known: np.ndarray,
) -> np.ndarray:
    """Whether tokens are pruned: t + most + threshold < log_denominator, if that is known."""
    upper = np.asarray(t) + np.asarray(most) + np.asarray(threshold)
    return (np.asarray(known) != 0) & (upper < np.asarray(log_denominator))
