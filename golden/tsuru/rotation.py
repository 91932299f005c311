"""Bit-exact model of the rotation: rows of FP16 numbers times a Hadamard matrix."""

import numpy as np

from golden.arith.float_convert import round_to
from golden.unicaim.rotation import hadamard

GUARD = 4
"""Bits of an aligned element below those of the row's largest number."""


def rotate(x: np.ndarray, back: bool | np.ndarray = False) -> np.ndarray:
    """H x / 2^h of rows x float16[..., d], float16: see :class:`hw.tsuru.rotation.Rotation`.

    back
        bool or bool[...], of each row: h is half of log2 d, rounded down in place of up.
    """
    ranks = x.shape[-1].bit_length() - 1
    whole, top = aligned(x)
    h = ranks - (ranks + np.asarray(back)) // 2
    exact = np.ldexp(hadamard(whole).astype(np.float64), (top - 25 - GUARD - h)[..., None])
    return round_to(np.where((top == 31)[..., None], np.nan, exact), "fp16")


def aligned(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows float16[..., d] as integers int64[..., d] in units of 2^(top - 29), and top int64[...].

    top is the largest exponent field of a row, at least 1; 31 of a row that is not finite. Integers
    are rounded to nearest, halves away from zero.
    """
    bits = x.view(np.uint16).astype(np.int64)
    field, mantissa = bits >> 10 & 31, bits & 0x3FF
    top = np.maximum(field.max(axis=-1), 1)
    significand = mantissa | (field > 0).astype(np.int64) << 10
    size = (significand << GUARD + 1 >> top[..., None] - np.maximum(field, 1)) + 1 >> 1
    return np.where(bits >> 15, -size, size), top
