"""Levels of the quantiser that loses least of a normal distribution (Lloyd 1957, Max 1960)."""

import functools

import numpy as np

from golden.algorithms.kllm.kmeans import kmeans

MOST_BITS = 8
_REACH, _POINTS = 6.0, 8192
"""The density is taken at POINTS points, up to REACH standard deviations from the mean."""


@functools.cache
def gaussian_levels(bits: int) -> np.ndarray:
    """``float64[2^bits]``, ascending, of a normal distribution of mean 0 and variance 1.

    >>> [float(level.round(2)) for level in gaussian_levels(2)]
    [-1.51, -0.45, 0.45, 1.51]

    :raises ValueError: for bits that are not 0 to MOST_BITS.
    """
    if not 0 <= bits <= MOST_BITS:
        raise ValueError(f"bits must be between 0 and {MOST_BITS}, not {bits}")
    points = (np.arange(_POINTS) + 0.5) / _POINTS * 2 * _REACH - _REACH
    levels = kmeans(points, 2**bits, np.exp(-np.square(points) / 2))
    return (levels - levels[::-1]) / 2


@functools.cache
def lost_share(bits: int) -> float:
    """Share of the variance that rounding to the nearest level loses; 1 with 0 bits."""
    points = (np.arange(_POINTS) + 0.5) / _POINTS * 2 * _REACH - _REACH
    weight = np.exp(-np.square(points) / 2)
    error = points - nearest(points, gaussian_levels(bits))
    return float(np.average(np.square(error), weights=weight))


def nearest(x: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The nearest of ascending `levels` to each x, in x's dtype."""
    borders = ((levels[1:] + levels[:-1]) / 2).astype(x.dtype)
    return levels.astype(x.dtype)[np.searchsorted(borders, x)]
