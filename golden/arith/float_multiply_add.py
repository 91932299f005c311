"""Fused multiply-add with one rounding, for formats that a float64 product holds exactly."""

import ml_dtypes
import numpy as np

from golden.arith.formats import canonical, flush


def float_multiply_add(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, *, flush_subnormals: bool = False
) -> np.ndarray:
    """``a * b + c`` rounded once, to nearest even, in the format of `c`.

    Products of two significands of at most 24 bits are exact in float64, whose exponents reach far
    below any such product. Their sum with `c` is rounded to odd: TwoSum (Knuth) gives the error
    of the float64 sum exactly, and if it is not zero and the sum's last bit is 0, the sum moves by
    one unit towards the error. Rounding that to p <= 51 bits gives the correctly rounded result
    (Boldo and Melquiond, 2008).

    flush_subnormals
        Subnormal operands count as zeros of their sign, and so does a result that is subnormal
        after rounding.
    """
    dtype = c.dtype
    if flush_subnormals:
        a, b, c = flush(a), flush(b), flush(c)
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        rounded = _round(_add_to_odd(product, c.astype(np.float64)), dtype)
    result = canonical(rounded)
    return flush(result) if flush_subnormals else result


def _add_to_odd(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y in float64, rounded to odd."""
    total = x + y
    without = total - x
    error = (x - (total - without)) + (y - without)
    bits = total.view(np.int64)
    inexact = np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + step, bits).view(np.float64)


def _round(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """float64 to nearest even; ml_dtypes' cast through float32 would round twice."""
    info = ml_dtypes.finfo(dtype)
    _, exponent = np.frexp(values)
    unit = np.ldexp(1.0, np.maximum(exponent - 1, info.minexp) - info.nmant)
    return (np.rint(values / unit) * unit).astype(dtype)
