"""A lane's results, from its parts' twins (KLLM, Fig. 5).

:func:`pe_lane` goes by columns and counts, as the hardware does; :func:`pe_lane_matrix` makes the
same bits for whole matrices of tokens and columns at once.
"""

import numpy as np

from golden.kllm.column_scale import column_scale
from golden.kllm.concat_unit import concat_unit
from golden.kllm.index_distribution_counter import index_distribution
from golden.kllm.reduction import index_products, reduction
from golden.kllm.sparse_path import sparse_path


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
) -> tuple[np.ndarray, np.ndarray]:
    """``float16[columns]`` results and ``bool[columns]`` invalid: whether they are NaN.

    activation, weight
        Indices ``[columns, K]``; the former are integers with `integer`.
    keep, outlier
        ``bool[columns, K]``: what counts, and what is summed apart.
    value
        ``float16[columns, K]``.
    table, codebook
        ``float16[2^nA, 2^nW]`` products of centroids, and ``float16[2^nW]`` of the weights.
    s_a, r, s_b
        ``float16[columns]``.
    """
    activation_bits, weight_bits = ((size - 1).bit_length() for size in table.shape)
    index = concat_unit(activation, weight, weight_bits)
    flags = np.full(len(index), integer)
    counts = index_distribution(index, keep, flags, activation_bits, weight_bits)
    s, _ = reduction(counts, table.reshape(-1))
    o, _ = sparse_path(value, np.asarray(weight)[..., None], codebook, outlier)
    return _scaled(s, o[:, 0], s_a, r, s_b)


def pe_lane_matrix(
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
) -> tuple[np.ndarray, np.ndarray]:
    """``float16[T, N]`` and ``bool[T, N]``: as :func:`pe_lane`, of all tokens and columns.

    activation, keep, value, outlier
        ``[T, K]``.
    weight
        ``[K, N]``.
    s_a, r, s_b
        ``float16``: ``[T]``, ``[T]``, ``[N]``.
    """
    s, _ = index_products(activation, weight, table, keep, integer)
    o, _ = sparse_path(value, weight, codebook, outlier)
    return _scaled(s, o, s_a[:, None], r[:, None], s_b)


def _scaled(s, o, s_a, r, s_b) -> tuple[np.ndarray, np.ndarray]:
    y = column_scale(s, o, s_a, r, s_b)
    return y, np.isnan(y)
