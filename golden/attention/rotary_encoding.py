"""Bit-exact model of the rotary encoding of pairs of elements."""

import numpy as np

from golden.arith.float_convert import float_convert
from golden.arith.float_multiply_add import float_multiply_add
from golden.arith.sine_cosine import sine_cosine

TURN, PHASE = 32, 15
"""Fraction bits of turns a position, and of the angle whose sine is looked up."""


def turns_of(angles: np.ndarray) -> np.ndarray:
    """``int64``: angles of one position, in radians, as turns in units of 2^-32."""
    return np.rint(np.asarray(angles, np.float64) / (2 * np.pi) * 2.0**TURN).astype(np.int64)


def rotary_encoding(
    a: np.ndarray, b: np.ndarray, positions: np.ndarray, turns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``float16``: pairs [..., pair] turned.

    positions
        ``int[...]``; they broadcast with the pairs' leading axes.
    turns
        ``int[pair]``: turns a position of each pair.
    """
    angle = np.asarray(positions, np.int64)[..., None] * turns + (1 << TURN - PHASE - 1)
    cosine, sine = sine_cosine(angle >> TURN - PHASE & ((1 << PHASE) - 1))
    minus_zero = np.float32(-0.0)
    a, b, cosine, sine = np.broadcast_arrays(a, b, cosine, sine)
    turned = []
    for first, second in ((cosine, -sine), (sine, cosine)):
        product = float_multiply_add(b, second, np.broadcast_to(minus_zero, b.shape))
        turned.append(float_convert(float_multiply_add(a, first, product), "fp16"))
    return turned[0], turned[1]
