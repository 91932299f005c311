"""Bit-exact model of the cosine and sine of a fraction of a turn."""

import math

import numpy as np

from golden.arith.fixed_to_float import fixed_to_float
from golden.arith.multipartite import SCALE, Multipartite

QUARTER = 13
SINE = Multipartite(QUARTER, 8, ((6, 3, 5), (4, 0, 3)), 5, 2, True)
"""1 + sin(pi u / 2) of a fraction u of a quarter turn."""
DIGITS = QUARTER + 2
"""Fraction bits of the table."""


def one_plus_sine(n: int, k: int) -> int:
    """1 + sin(pi u / 2) times 2^SCALE, rounded down, for u = n / 2^k."""
    return math.floor((1 + math.sin(math.pi / 2 * n / 2**k)) * 2**SCALE)


def sine_cosine(phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``float16``: cosine and sine of phases in units of 2^-15 turns."""
    phase = np.asarray(phase, np.int64)
    within, quarter = phase & ((1 << QUARTER) - 1), phase >> QUARTER & 3
    start = within == 0
    values = []
    for fraction, exact in ((within, 0), (-within & ((1 << QUARTER) - 1), 1)):
        table = fixed_to_float(
            SINE(one_plus_sine, fraction) - (1 << DIGITS), "fp16", fraction=DIGITS
        )
        values.append(np.where(start, np.float16(exact), table))
    odd = (quarter & 1).astype(bool)
    cosine, sine = np.where(odd, values[0], values[1]), np.where(odd, values[1], values[0])
    return (
        np.where((quarter == 1) | (quarter == 2), -cosine, cosine),
        np.where(quarter >= 2, -sine, sine),
    )
