"""Floating-point addition and subtraction."""

import numpy as np

from golden.arith.formats import Values, canonical, flush


def float_add(
    a: Values, b: Values, subtract=False, *, flush_subnormals: bool = False
) -> np.ndarray:
    """``a + b``, or ``a - b`` where `subtract`, correctly rounded, in the dtype of `a` and `b`.

    NumPy and ml_dtypes add 16- and 8-bit numbers in float32 and round once more, which gives the
    correctly rounded sum: 24 bits are at least twice the precision and two. NaNs are the hardware's
    quiet NaN. With `flush_subnormals`, subnormal operands and results are zeros of their sign.
    """
    if flush_subnormals:
        a, b = flush(a), flush(b)
    with np.errstate(all="ignore"):
        total = a + b if subtract is False else np.where(subtract, a - b, a + b).astype(a.dtype)
    total = canonical(total)
    return flush(total) if flush_subnormals else total
