"""Bit-exact model of the lanes, for whole matrices of vectors and columns (KLLM, Fig. 5)."""

import numpy as np

from golden.kllm.column_scale import column_result, column_sum
from golden.kllm.reduction import index_products
from golden.kllm.sparse_path import sparse_path


def lane_sums(
    activation: np.ndarray,
    weight: np.ndarray,
    keep: np.ndarray,
    value: np.ndarray,
    outlier: np.ndarray,
    table: np.ndarray,
    codebook: np.ndarray,
    s_a: np.ndarray,
    integer: bool = False,
    kept: np.ndarray | None = None,
) -> np.ndarray:
    """``float32[T, N]``: sums before the column's scale; see :func:`pe_lane`."""
    s, _ = index_products(activation, weight, table, keep, integer)
    rows = outlier.any(axis=0)  # the others add nothing to any vector
    o, _ = sparse_path(value[:, rows], weight[rows], codebook, outlier[:, rows])
    return column_sum(s, o, s_a[:, None], kept)


def pe_lane(
    activation: np.ndarray,
    weight: np.ndarray,
    keep: np.ndarray,
    value: np.ndarray,
    outlier: np.ndarray,
    table: np.ndarray,
    codebook: np.ndarray,
    s_a: np.ndarray,
    r: np.ndarray,
    s_b: np.ndarray,
    integer: bool = False,
    kept: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """``float16[T, N]`` results, and ``bool[T, N]`` invalid: the result is NaN.

    activation, weight
        Indices ``[T, K]`` and ``[K, N]``; the former are integers with `integer`.
    keep, outlier
        ``bool[T, K]``: positions whose indices are counted, and positions of the sparse sum.
    value
        ``float16[T, K]``.
    table, codebook
        ``float16[2^nA, 2^nW]`` products of centroids, and ``float16[2^nW]`` of the weights.
    s_a, r, s_b
        ``float16``: ``[T]``, ``[T]``, ``[N]``.
    kept
        ``float32[T, N]``: sums of earlier rows of the matrix.
    """
    total = lane_sums(activation, weight, keep, value, outlier, table, codebook, s_a, integer, kept)
    y = column_result(total, r[:, None], s_b)
    return y, np.isnan(y)
