"""The reciprocal of the square root as the hardware computes it."""

from math import isqrt

import ml_dtypes
import numpy as np

from golden.arith.fields import is_infinite, overflow, split, with_sign
from golden.arith.formats import DTYPES, canonical, flush, from_bits, is_nan, quiet_nan
from golden.arith.multipartite import SCALE, Multipartite

TABLES = {
    DTYPES["fp16"]: Multipartite(11, 7, ((5, 3, 4), (4, 0, 3)), 12, 1, True),
    DTYPES["bf16"]: Multipartite(8, 5, ((3, 0, 3),), 11, 1, True),
    DTYPES["fp8_e4m3"]: Multipartite(4, 4, (), 4, 0, True),
    DTYPES["fp8_e5m2"]: Multipartite(3, 3, (), 4, 0, True),
}


def double_root(n: int, k: int) -> int:
    """2 / sqrt(u) times 2^SCALE, rounded down; u = 1 + 2t up to t = 1/2, then 4t; t = n / 2^k."""
    u = (1 << k) + 2 * n if 2 * n <= 1 << k else 4 * n
    return isqrt((4 << (2 * SCALE + k)) // u)


def inverse_square_root(x: np.ndarray, *, flush_subnormals: bool = False) -> np.ndarray:
    """1 / sqrt(x), with an error below one unit in the last place.

    Formats of at most 16 bits; see :class:`hw.arith.inverse_square_root.InverseSquareRoot`. With
    `flush_subnormals`, subnormal operands count as zeros of their sign.
    """
    x = flush(x) if flush_subnormals else x
    table, bits = TABLES[x.dtype], ml_dtypes.finfo(x.dtype).nmant
    bias = 1 - int(ml_dtypes.finfo(x.dtype).minexp)
    fields = split(x).normalised(bits)
    odd, half = fields.exponent & 1, fields.exponent >> 1
    index = odd << bits | fields.significand & ((1 << bits) - 1)
    significand = table(double_root, index) >> (table.guard + 1)
    magnitude = ((bias - 2 - half) << bits) + significand
    is_zero = fields.significand == 0
    magnitude = np.where(is_infinite(x), 0, np.where(is_zero, overflow(x.dtype), magnitude))
    result = with_sign(magnitude, fields.negative, x.dtype)
    undefined = is_nan(x) | fields.negative & ~is_zero
    return canonical(np.where(undefined, from_bits(np.array(quiet_nan(x.dtype)), x.dtype), result))
