"""Division as the hardware computes it."""

import ml_dtypes
import numpy as np

from golden.arith.fields import is_infinite, overflow, split, with_sign
from golden.arith.formats import DTYPES, canonical, flush, from_bits, is_nan, quiet_nan
from golden.arith.multipartite import Multipartite
from golden.arith.reciprocal import double_reciprocal

TABLES = {
    DTYPES["fp16"]: Multipartite(10, 6, ((5, 2, 4), (4, 0, 2)), 7, 3, True),
    DTYPES["bf16"]: Multipartite(7, 5, ((3, 0, 2),), 4, 2, True),
    DTYPES["fp8_e4m3"]: Multipartite(3, 3, (), -1, 3, True),
    DTYPES["fp8_e5m2"]: Multipartite(2, 2, (), -1, 2, True),
}


def divide(a: np.ndarray, b: np.ndarray, *, flush_subnormals: bool = False) -> np.ndarray:
    """a / b, with an error below one unit in the last place; see :class:`hw.arith.divide.Divide`.

    Formats of at most 16 bits. With `flush_subnormals`, subnormal operands count as zeros and
    subnormal results become zeros.
    """
    dtype = a.dtype
    if flush_subnormals:
        a, b = flush(a), flush(b)
    table, bits = TABLES[dtype], ml_dtypes.finfo(dtype).nmant
    least, infinity = int(ml_dtypes.finfo(dtype).minexp), overflow(dtype)
    x, y = split(a).normalised(bits), split(b).normalised(bits)
    a_zero, b_zero = x.significand == 0, y.significand == 0
    reciprocal = table(double_reciprocal, y.significand & ((1 << bits) - 1))
    below_one = x.significand < y.significand
    dropped = table.width + table.guard + 1 - below_one
    significand = (x.significand * reciprocal + (1 << (dropped - 1))) >> dropped
    exponent = x.exponent - y.exponent - below_one
    shift = np.clip(least - exponent, 0, 60)  # of subnormal results
    magnitude = (significand >> shift) + (np.maximum(exponent - least, 0) << bits)
    magnitude = np.minimum(magnitude, infinity)
    magnitude = np.where(a_zero | is_infinite(b), 0, magnitude)
    magnitude = np.where(b_zero | is_infinite(a), infinity, magnitude)
    result = with_sign(magnitude, x.negative ^ y.negative, dtype)
    undefined = a_zero & b_zero | is_infinite(a) & is_infinite(b) | is_nan(a) | is_nan(b)
    result = canonical(np.where(undefined, from_bits(np.array(quiet_nan(dtype)), dtype), result))
    return flush(result) if flush_subnormals else result
