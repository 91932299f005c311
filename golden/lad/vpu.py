"""Bit-exact model of the vector processing unit."""

import numpy as np

from golden.arith.adder_tree import adder_tree
from golden.arith.float_multiply import float_multiply

DP, EM, S, NONE = range(4)


def vpu(
    mode: np.ndarray, load: np.ndarray, vec1: np.ndarray, vec2: np.ndarray, scal: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors ``float16[EM and S, d]`` and dot products ``float16[DP]`` of operations, in order.

    mode
        ``int[operations]``: DP, EM, S or NONE.
    load
        ``bool[operations]``: ``vec1`` is loaded into the vector register before the operation.
    vec1, vec2, scal
        ``float16[operations, d]`` twice and ``float16[operations]``.

    Raises ``ValueError`` when the vector register is used before it is loaded.
    """
    mode, load = np.asarray(mode), np.asarray(load, bool)
    held = np.maximum.accumulate(np.where(load, np.arange(len(mode)), -1))
    if (held[(mode == DP) | (mode == EM)] < 0).any():
        raise ValueError("the first DP or EM needs a vector loaded")
    is_vector, is_dot = (mode == EM) | (mode == S), mode == DP
    factor = np.where((mode == S)[:, None], np.asarray(scal)[:, None], vec1[held])
    products = float_multiply(factor, vec2)
    return products[is_vector], adder_tree(products[is_dot])
