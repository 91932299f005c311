"""Bit-exact model of the active position identification."""

from dataclasses import dataclass

import numpy as np

from golden.algorithms.lad.piecewise_exp import EIGHT_BOUNDS
from golden.arith.float_add import float_add
from golden.lad.tables import line_tables


@dataclass(frozen=True)
class Identified:
    """Results for the positions of a step, arrays ``[..., n]``.

    active
        Whether the position is active.
    mode
        As given; 0 in the window.
    count
        The new counter of the mode; unchanged for an active position.
    halve
        Whether the other counters of the position must be halved.
    """

    active: np.ndarray
    mode: np.ndarray
    count: np.ndarray
    halve: np.ndarray


def identify(
    s: np.ndarray,
    m: np.ndarray,
    mode: np.ndarray,
    count: np.ndarray,
    *,
    bounds: tuple[float, ...] = EIGHT_BOUNDS,
    slack: int = 0,
    window: int = 16,
    counter_bits: int = 12,
) -> Identified:
    """One step of n positions.

    s, m
        ``float16[..., n]`` scores and ``float16[...]`` their maximum.
    mode, count
        ``int[..., n]``: modes from I on have no interval.
    slack
        See :func:`golden.lad.tables.line_tables`.
    """
    s, mode, count = np.asarray(s), np.asarray(mode), np.asarray(count)
    n = s.shape[-1]
    older = np.arange(n) < n - window
    mode = np.where(older, mode, 0)
    x = float_add(s, np.asarray(m)[..., None], True)
    tables = line_tables(bounds, slack)
    known = np.minimum(mode, len(tables) - 1)
    with np.errstate(invalid="ignore"):
        within = (x > tables.lower[known]) & (x <= tables.upper[known]) & (mode < len(tables))
    # A difference of -inf is in the first interval.
    within |= np.isneginf(x) & (mode == 0)
    inactive = older & within
    increased = count + inactive
    halve = inactive & (increased >= (1 << counter_bits) - 1)
    return Identified(~inactive, mode, increased >> halve, halve)
