"""Dot products."""

import numpy as np

from golden.arith.adder_tree import adder_tree
from golden.arith.float_multiply import float_multiply


def dot_product(a: np.ndarray, b: np.ndarray, *, flush_subnormals: bool = False) -> np.ndarray:
    """Over the last axis, rounded in the hardware's order; of integers exact."""
    if a.dtype.kind in "iu":
        return (a * b).sum(axis=-1)
    products = float_multiply(a, b, flush_subnormals=flush_subnormals)
    return adder_tree(products, flush_subnormals=flush_subnormals)
