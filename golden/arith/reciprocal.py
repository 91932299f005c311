"""The reciprocal as the hardware computes it."""

import ml_dtypes
import numpy as np

from golden.arith.fields import is_infinite, overflow, split, with_sign
from golden.arith.formats import DTYPES, canonical, flush, is_nan
from golden.arith.multipartite import SCALE, Multipartite

TABLES = {
    DTYPES["fp16"]: Multipartite(10, 7, ((4, 0, 3),), 6, 1, True),
    DTYPES["bf16"]: Multipartite(7, 5, ((3, 0, 2),), 6, 1, True),
    DTYPES["fp8_e4m3"]: Multipartite(3, 3, (), 2, 0, True),
    DTYPES["fp8_e5m2"]: Multipartite(2, 2, (), 2, 0, True),
}


def double_reciprocal(n: int, k: int) -> int:
    """2 / (1 + n / 2^k), times 2^SCALE, rounded down."""
    return (2 << (SCALE + k)) // ((1 << k) + n)


def reciprocal(x: np.ndarray, *, flush_subnormals: bool = False) -> np.ndarray:
    """1 / x, with an error below one unit in the last place.

    See :class:`hw.arith.reciprocal.Reciprocal`. Formats of at most 16 bits. With
    `flush_subnormals`, subnormal operands count as zeros and subnormal results become zeros.
    """
    table, bits = TABLES[x.dtype], ml_dtypes.finfo(x.dtype).nmant
    least, infinity = int(ml_dtypes.finfo(x.dtype).minexp), overflow(x.dtype)
    x = flush(x) if flush_subnormals else x
    fields = split(x).normalised(bits)
    significand = table(double_reciprocal, fields.significand & ((1 << bits) - 1)) >> table.guard
    exponent = -fields.exponent - 1
    shift = np.clip(least - exponent, 0, 60)  # of subnormal results
    magnitude = (significand >> shift) + (np.maximum(exponent - least, 0) << bits)
    magnitude = np.where(fields.significand == 0, infinity, np.minimum(magnitude, infinity))
    result = with_sign(np.where(is_infinite(x), 0, magnitude), fields.negative, x.dtype)
    result = canonical(np.where(is_nan(x), x, result))
    return flush(result) if flush_subnormals else result
