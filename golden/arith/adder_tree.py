"""Balanced trees of two-operand functions."""

from collections.abc import Callable

import numpy as np

from golden.arith.float_add import float_add
from golden.arith.float_max import float_max
from golden.arith.formats import canonical


def tree(values: np.ndarray, unit: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """`unit` over the last axis, in pairs of neighbours; an odd last one goes to the next level."""
    while values.shape[-1] > 1:
        even = values.shape[-1] & ~1
        results = unit(values[..., 0:even:2], values[..., 1:even:2])
        values = np.concatenate([results, values[..., even:]], axis=-1)
    return values[..., 0]


def adder_tree(
    values: np.ndarray, operation: str = "add", *, flush_subnormals: bool = False
) -> np.ndarray:
    """Sums or maxima over the last axis, rounded in the hardware's order; of integers exact."""
    if values.dtype.kind in "iu":
        return values.sum(axis=-1)
    if operation == "add" and not flush_subnormals and values.shape[-1] > 1:
        # A NaN remains one, whatever its bits, so the bits of the last sum alone are set.
        with np.errstate(all="ignore"):
            return canonical(tree(values, np.add))
    unit = {"add": float_add, "max": float_max}[operation]
    return tree(values, lambda a, b: unit(a, b, flush_subnormals=flush_subnormals))
