"""Bit-exact model of the comparison of floating-point numbers."""

import numpy as np

from golden.arith.formats import flush, is_nan


def float_compare(
    a: np.ndarray, b: np.ndarray, *, flush_subnormals: bool = False
) -> dict[str, np.ndarray]:
    """``less``, ``equal`` and ``unordered`` as 0 or 1; with a NaN only ``unordered``."""
    if flush_subnormals:
        a, b = flush(a), flush(b)
    unordered = is_nan(a) | is_nan(b)
    with np.errstate(invalid="ignore"):
        less, equal = a < b, a == b
    relations = {"less": less, "equal": equal, "unordered": unordered}
    return {name: relation.astype(np.int64) for name, relation in relations.items()}
