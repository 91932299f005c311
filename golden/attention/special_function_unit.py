"""Softmax and layer norm as the hardware computes them.

See :mod:`hw.attention.special_function_unit`.

Vectors of any length, one at a time. ``length`` is the most elements that the hardware accepts.
"""

import numpy as np

from golden.arith.float_add import float_add
from golden.arith.formats import from_bits, quiet_nan, to_bits
from golden.arith.wide_exponent import round_fp16
from golden.attention.binary_exponent import binary_exponent, term
from golden.attention.moment_reduction import moment_reduction
from golden.attention.softmax_reduction import softmax_reduction

NAN = from_bits(np.array(quiet_nan(np.float16)), np.float16)


def softmax(x: np.ndarray, length: int, tile: int) -> tuple[np.ndarray, bool]:
    """``float16`` probabilities of ``float16[n]`` scores, and whether they are invalid."""
    reduced = softmax_reduction(x, length, tile)
    digits, shift = term(binary_exponent(x), reduced.origin)
    y = round_fp16(digits * reduced.inverse_sum, 30, 14 - reduced.sum_exponent - shift)
    if reduced.undefined:
        y = np.full_like(y, NAN)
    elif reduced.empty:
        y = np.zeros_like(y)
    return y, reduced.undefined or reduced.empty


def layer_norm(
    x: np.ndarray, inverse: np.float32, eps: np.float32, *, rms: bool = False
) -> tuple[np.ndarray, bool]:
    """``float16`` of (x - mean) / std of ``float16[n]``, and whether it is invalid.

    inverse, eps
        ``float32``: 1 / n, and what is added to the variance.
    rms
        Whether the mean counts as 0.
    """
    moments = moment_reduction(x, inverse, eps, rms)
    if moments.undefined:
        return np.full_like(x, NAN), True
    wide = x.astype(np.float32)
    difference = to_bits(float_add(wide, -moments.mean, flush_subnormals=True)).astype(np.int64)
    digits = 1 << 14 | difference >> 9 & 0x3FFF
    field = (difference >> 23 & 0xFF) - 111 + moments.exponent
    y = round_fp16(digits * moments.inverse_std, 30, np.clip(field, -64, 63))
    return np.where(difference >> 31 == 1, -y, y).astype(np.float16), False
