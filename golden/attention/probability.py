"""FP16 probabilities as exact integers; see :mod:`hw.attention.probability`."""

import numpy as np

FRACTION = 24
"""Fraction bits of a probability."""

ONE = 0x3C00
"""FP16 bits of 1."""


def fixed(p: np.ndarray) -> np.ndarray:
    """FP16 probabilities in units of 2^-24, exactly; invalid ones count as 0."""
    p = np.where(is_probability(p), p, np.float16(0))
    return (p.astype(np.float64) * 2.0**FRACTION).astype(np.int64)


def is_probability(p: np.ndarray) -> np.ndarray:
    """Whether FP16 numbers are from +0 to 1."""
    return np.asarray(p, np.float16).view(np.uint16) <= ONE
