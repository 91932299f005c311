"""The square root, rounded correctly."""

import numpy as np

from golden.arith.formats import canonical, flush


def square_root(x: np.ndarray, *, flush_subnormals: bool = False) -> np.ndarray:
    """The square root of x, NaN for negative numbers, -0 for -0.

    With `flush_subnormals`, subnormal operands count as zeros of their sign.
    """
    x = flush(x) if flush_subnormals else x
    with np.errstate(invalid="ignore"):
        return canonical(np.sqrt(x))
