"""Matrix-vector products on indices (KLLM, sections III-B and III-D; figures 3 and 5).

    y[n] = s_A s_B[n] sum over i of count_n[i] P[i]  +  sum over outliers k of A[k] B[k, n]

``P`` holds the products of all pairs of centroids, ``count_n`` how often each pair occurs in
column n. Counts are integers; sums and results are float64 and, but for its rounding, equal to the
product of the dequantised operands. Each step is a function, in the order of Fig. 3.
"""

import numpy as np

from golden.algorithms.kllm.quantize import QuantizedActivations, QuantizedWeights


def product_table(
    codebook_a: np.ndarray, codebook_b: np.ndarray, dtype: type = np.float64
) -> np.ndarray:
    """``dtype[2^(nA + nW)]``: the Cartesian product P, made offline; P[idxA || idxW] = C_A * C_B.

    In float64 every product of two FP16 values is exact. The accelerator's table is ``float16``.
    """
    products = np.multiply.outer(codebook_a.astype(np.float64), codebook_b.astype(np.float64))
    return products.ravel().astype(dtype)


def concatenate(index_a: np.ndarray, index_b: np.ndarray, bits_b: int) -> np.ndarray:
    """``uint16[K, N]``: step 1, index_a [K] before the `bits_b` bits of each of index_b [K, N]."""
    return index_a.astype(np.uint16)[:, None] << np.uint16(bits_b) | index_b


def count_indices(
    index: np.ndarray,
    bins: int,
    keep: np.ndarray | None = None,
    increments: np.ndarray | None = None,
) -> np.ndarray:
    """``int64[N, bins]``: step 2, how often each index occurs in each column of `index` [K, N].

    keep
        ``bool[K]``: rows that count; all when not given.
    increments
        Integers [K, N] to count by instead of 1 [III-B2].
    """
    if increments is None:
        increments = np.ones(index.shape, np.int64)
    if keep is not None:
        index, increments = index[keep], increments[keep]
    n = index.shape[1]
    counts = np.zeros(n * bins, np.int64)
    np.add.at(counts, np.arange(n) * bins + index, increments)
    return counts.reshape(n, bins)


def reduce(counts: np.ndarray, table: np.ndarray) -> np.ndarray:
    """``float64[N]``: step 3, the sum of count * P over the bins."""
    return counts.astype(np.float64) @ table.astype(np.float64)


def matvec(
    a: QuantizedActivations, b: QuantizedWeights, table: np.ndarray | None = None
) -> np.ndarray:
    """``float64[N]``: the product of one token's vector [K] with a matrix [K, N].

    ``table`` is the Cartesian product of the codebooks, exact when not given. Zero points expand
    into marginal counts: sum of (C_A - z_A)(C_B - z_B) =
    sum count P - z_B sum count C_A - z_A sum count C_B + count_total z_A z_B.
    """
    if a.index.ndim != 1:
        raise ValueError(f"a must be one token's vector, not of shape {a.index.shape}")
    if a.index.shape[0] != b.index.shape[0]:
        raise ValueError(f"a has {a.index.shape[0]} elements but b {b.index.shape[0]} rows")
    levels_a, levels_b = len(a.codebook), len(b.codebook)
    if table is None:
        table = product_table(a.codebook, b.codebook)
    index = concatenate(a.index, b.index, levels_b.bit_length() - 1)
    counts = count_indices(index, levels_a * levels_b, ~a.outlier)
    dense = reduce(counts, table)
    pairs = counts.reshape(-1, levels_a, levels_b)
    zero_a, zero_b = np.float64(a.zero), b.zero.astype(np.float64)
    dense -= zero_b * reduce(pairs.sum(axis=2), a.codebook)
    dense -= zero_a * reduce(pairs.sum(axis=1), b.codebook)
    dense += counts.sum(axis=1) * zero_a * zero_b
    scale = np.float64(a.scale) * b.scale.astype(np.float64)
    return scale * dense + sparse_product(a, b)


def sparse_product(a: QuantizedActivations, b: QuantizedWeights) -> np.ndarray:
    """``float64[N]``: the outliers times their rows of the matrix, dequantised [III-D]."""
    rows = QuantizedWeights(b.index[a.outlier], b.codebook, b.scale, b.zero)
    return a.value[a.outlier].astype(np.float64) @ rows.dequantize()


def matvec_integer(
    integers: np.ndarray, index: np.ndarray, codebook: np.ndarray, scale: np.ndarray | float = 1.0
) -> np.ndarray:
    """``float64[N]``: scale * sum over k of integers * codebook[index], by counting [III-B2].

    The integers are the counters' increments, so a column needs 2^n bins only. One of the operands
    is a vector [K] for all columns, the other a matrix [K, N]: integer attention scores [K] times V
    [K, N], or K-Means activations [K] times an integer matrix (Fig. 3b). ``scale``, [N] or one
    number, is the product of both operands' scales; a scale for each k must be in the integers
    already.
    """
    if np.asarray(integers).dtype.kind not in "iu":
        raise ValueError(f"integers must be integers, not {np.asarray(integers).dtype}")
    integers, index = (np.asarray(array) for array in (integers, index))
    if index.ndim == 1:
        index = index[:, None]
    if integers.ndim == 1:
        integers = integers[:, None]
    index, integers = np.broadcast_arrays(index, integers.astype(np.int64))
    return scale * reduce(count_indices(index, len(codebook), increments=integers), codebook)
