"""Bit-exact model of the minimum of floating-point numbers."""

import numpy as np

from golden.arith.float_max import extreme


def float_min(a: np.ndarray, b: np.ndarray, *, flush_subnormals: bool = False) -> np.ndarray:
    """IEEE 754's minimumNumber: NaN only for two NaNs, minus zero is below plus zero."""
    return extreme(a, b, smaller=True, flush_subnormals=flush_subnormals)
