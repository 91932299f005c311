"""Bit-exact model of the concat unit: activation and weight indices side by side."""

import numpy as np


def concat_unit(activation: np.ndarray, weight: np.ndarray, weight_bits: int) -> np.ndarray:
    """``int64`` indices activation * 2^weight_bits + weight, of any shape."""
    return np.asarray(activation, np.int64) << weight_bits | np.asarray(weight, np.int64)
