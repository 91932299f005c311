"""Bit-exact model of linear layers on the tile's VPUs."""

import numpy as np

from golden.arith.adder_tree import adder_tree
from golden.arith.float_add import float_add
from golden.arith.float_multiply import float_multiply
from golden.arith.formats import canonical


def linear(vectors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """float32[rows, vectors] of float16 [vectors, pieces, d] and [rows, pieces, d].

    Pieces are multiplied and summed in FP16, their sums added in FP32, in order.
    """
    products = float_multiply(weights[:, None], vectors[None])
    dots = canonical(adder_tree(products).astype(np.float32))
    total = dots[..., 0]
    for piece in range(1, dots.shape[-1]):
        total = float_add(total, dots[..., piece])
    return total
