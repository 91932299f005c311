"""Codes and scales of stored rows: what they are worth, and the words that they fill.

See :mod:`hw.tsuru.row_format` for the formats. ``golden.tsuru.row_encoder`` makes them of rows.
"""

import numpy as np

SCALE_FRACTION = 3
SCALE_BIAS = 15
LARGEST_SCALE = 28 << SCALE_FRACTION | 7
NOT_FINITE = 255
SEARCH_ROWS = 8
"""Rows whose search codes fill a word of memory."""


def scale_values(scales: np.ndarray) -> np.ndarray:
    """float16[...] that scales uint8[...] mean; NaN of rows that were not finite."""
    bits = scales.astype(np.uint16) << (10 - SCALE_FRACTION)
    bits = np.where(scales >> SCALE_FRACTION == 0, 0, bits)
    return np.where(scales == NOT_FINITE, 0x7E00, bits).astype(np.uint16).view(np.float16)


def fine_values(codes: np.ndarray, scales: np.ndarray, fraction: int) -> np.ndarray:
    """float16[..., d], exactly, of fine codes uint16[..., d] and scales uint8[...].

    fraction
        Fraction bits m; a code has m + 3 bits.
    """
    codes = codes.astype(np.int64)
    e, below = codes >> fraction & 3, codes & (1 << fraction) - 1
    steps = np.where(e > 0, (below | 1 << fraction) << np.maximum(e - 1, 0), below)
    size = np.ldexp(steps.astype(np.float64), -fraction - 1)
    s = scale_values(scales)[..., None].astype(np.float64)
    found = np.copysign(size * np.where(np.isnan(s), 0, s), 1 - 2.0 * (codes >> fraction + 2))
    return np.where(np.isnan(s), np.nan, found).astype(np.float16)


def search_values(codes: np.ndarray) -> np.ndarray:
    """-3, -1, 1 or 3, int64[...], of search codes uint8[...]: elements in halves of the scale."""
    return (1 - 2 * (codes.astype(np.int64) >> 1)) * (1 + 2 * (codes.astype(np.int64) & 1))
