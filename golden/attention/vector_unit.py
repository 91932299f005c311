"""Bit-exact model of the element-wise operations of two vectors."""

import numpy as np

from golden.arith.formats import is_nan
from golden.attention.pair_function import pair_function


def vector_unit(a: np.ndarray, b: np.ndarray, op: int) -> tuple[np.ndarray, np.ndarray]:
    """Operation number `op` of two ``float16`` vectors: ``float16`` results, and which are NaN."""
    y = pair_function(a, b, op)
    return y, is_nan(y)
