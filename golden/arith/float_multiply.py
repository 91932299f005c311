"""Multiplication of floating-point arrays, correctly rounded."""

import numpy as np

from golden.arith.formats import Values, canonical, flush


def float_multiply(a: Values, b: Values, *, flush_subnormals: bool = False) -> np.ndarray:
    """``a * b`` rounded to nearest even; NaNs are the hardware's quiet NaN.

    NumPy multiplies float32 in hardware; it and ml_dtypes multiply all narrower formats in float32
    and round again, which rounds only once: a product of two significands of up to 12 bits is
    exact in float32. BF16 has the exponents of float32, but where float32 rounds a subnormal
    product, it is below half of BF16's smallest number, or becomes that half and then zero.

    flush_subnormals
        Subnormal operands count as zeros of their sign, and so does a result that is subnormal
        after rounding.
    """
    if flush_subnormals:
        a, b = flush(a), flush(b)
    with np.errstate(all="ignore"):
        result = canonical(a * b)
    return flush(result) if flush_subnormals else result
