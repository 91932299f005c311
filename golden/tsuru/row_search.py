"""Bit-exact model of the search: estimates of scores by search codes; see hw.tsuru.row_search."""

import numpy as np

from golden.tsuru.row_format import NOT_FINITE, SCALE_FRACTION, search_values

FRACTION = 6
"""Fraction bits of an estimate, which is a binary logarithm."""
LARGEST = (1 << 15) - 1
FACTOR_BITS = 7
FACTORS = np.rint((1 + np.arange(8) / 8) * np.log2(np.e) * 2**FACTOR_BITS).astype(np.int64)
"""log2(e) times a scale's significand."""
SIGNIFICAND = 11


def aligned(q: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers int64[..., d] of queries float16[..., d], and the highest exponent field of each.

    bits
        Width of an integer, its sign included. Elements are rounded to the nearest, halves up,
        and saturate.
    """
    raw = q.view(np.uint16).astype(np.int64)
    negative, field, below = raw >> 15, raw >> 10 & 31, raw & 0x3FF
    significand = below | (field > 0).astype(np.int64) << 10
    field = np.maximum(field, 1)
    top = field.max(axis=-1)
    half = significand >> top[..., None] - field + SIGNIFICAND - bits
    size = np.minimum(half + 1 >> 1, (1 << bits - 1) - 1)
    return np.where(negative == 1, -size, size), top


def estimates(
    integers: np.ndarray, top: np.ndarray, scales: np.ndarray, codes: np.ndarray, bits: int
) -> np.ndarray:
    """int64[head, row]: log2 of e^(q k) in units of 2^-FRACTION, rounded down, saturated.

    integers, top
        Of queries, int64[head, d] and int64[head], as :func:`aligned` gives them.
    scales, codes
        uint8[row] and uint8[row, d]; a row that was not finite has the largest estimate.
    """
    scales = scales.astype(np.int64)
    # Exact in float64: below 2^21.
    dots = (integers.astype(np.float64) @ search_values(codes).T.astype(np.float64)).astype(
        np.int64
    )
    product = dots * np.where(scales >> SCALE_FRACTION > 0, FACTORS[scales & 7], 0)
    drop = SIGNIFICAND + 1 - bits
    # 2^-1 of the codes, 2^-15 of the scale, 2^(drop - 25) of the query.
    right = 41 + FACTOR_BITS - FRACTION - drop - top[:, None] - (scales >> SCALE_FRACTION)
    beyond = np.sign(product) << 40
    found = np.where(right < 0, beyond, product >> np.clip(right, 0, 62))
    found = np.clip(found, -LARGEST - 1, LARGEST)
    return np.where(scales == NOT_FINITE, LARGEST, found)


def merged(e: np.ndarray, sinks: int, planes: int) -> tuple[np.ndarray, np.ndarray]:
    """Estimates of rows, int64[head, slot], of those of slots, and which slots have one, bool.

    The estimates of the planes of a sink are added, in its first slot.
    """
    present = np.ones(e.shape[1], bool)
    e = e.copy()
    for first in range(0, min(sinks * planes, e.shape[1]), planes):
        total = e[:, first : first + planes].sum(axis=1)
        e[:, first] = np.clip(total, -LARGEST - 1, LARGEST)
        present[first + 1 : first + planes] = False
    return e, present
