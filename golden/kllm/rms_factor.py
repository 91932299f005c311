"""Bit-exact model of the RMS factor: 1 / RMS from indices and outliers (KLLM, III-C2)."""

import numpy as np

from golden.arith.fixed_sum import UNIT, dot, round_sum, units, with_invalid
from golden.arith.formats import from_bits
from golden.kllm.inverse_rms import inverse_rms
from golden.kllm.reduction import reduction


def sums_of_squares(
    index: np.ndarray, keep: np.ndarray, pairs: dict[str, np.ndarray], squares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``float32[T]`` each: sum of count times square, sum of outliers^2; see :func:`rms_factor`."""
    rows, bins = np.arange(len(index))[:, None], len(squares)
    counted = (rows * bins + index)[keep]
    counts = np.bincount(counted, minlength=len(index) * bins).reshape(-1, bins)
    s, _ = reduction(counts, squares)
    ends = np.concatenate([pairs["max_value"], pairs["min_value"]], axis=1)
    repeated = np.concatenate([pairs["max_repeated"], pairs["min_repeated"]], axis=1)
    values = from_bits(np.where(repeated, 0, ends).astype(np.uint16), np.float16)
    digits = units(values)
    high, low = dot(digits[:, None, :], digits[:, :, None])
    special = ~np.isfinite(values).all(axis=1)
    return s, with_invalid(round_sum(high, low, 2 * UNIT)[:, 0, 0], special)


def rms_factor(
    index: np.ndarray,
    keep: np.ndarray,
    pairs: dict[str, np.ndarray],
    squares: np.ndarray,
    s_a: np.ndarray,
    inverse_k: np.float32,
    eps: np.float32,
) -> np.ndarray:
    """``float16[T]``: 1 / sqrt((s_a^2 sum count squares + sum of outliers^2) inverse_k + eps).

    index, keep
        ``[T, K]``: indices, and the mask of those that are counted.
    pairs
        Outliers as :func:`golden.kllm.outlier_split.outlier_split` returns them; repeated ones
        are added once.
    squares
        ``float16[2^nA]`` of the centroids.
    s_a
        ``float16[T]``.
    """
    s, o = sums_of_squares(index, keep, pairs, squares)
    r, _, _ = inverse_rms(s, o, s_a, np.full_like(s, inverse_k), np.full_like(s, eps))
    return r
