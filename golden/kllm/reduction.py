"""Bit-exact model of the reduction: sum of count * product over the bins (KLLM, III-B, step 3).

The sum is exact and rounded once; see docs/kllm.md, "Rounding of sums".

Two forms give the same integers: :func:`reduction` from a column's histogram, as in hardware, and
:func:`index_products` from the indices of whole matrices, as one product of matrices for each value
of the activation's index.
"""

import numpy as np

from golden.arith.fixed_sum import UNIT, round_sum, units, with_invalid

_LARGEST = 2047 << 29  # FP16, in units of 2^-24
MOST = (1 << 53) // _LARGEST
"""Terms of which every partial sum is an integer that float64 holds exactly: 8196."""


def reduction(counts: np.ndarray, products: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``float32[...]`` sum of ``counts * products`` over the last axis, and ``bool[...]`` invalid.

    counts
        Integers of at least 0 that add up to at most 2^22 in each column.
    products
        ``float16``, of the same bins. One that is not finite, in a bin with a count above 0, makes
        the sum NaN and ``invalid``.
    """
    counts = np.asarray(counts, np.int64)
    total = (counts * units(products).astype(np.int64)).sum(axis=-1)
    invalid = ((counts > 0) & ~_finite(products)).any(axis=-1)
    return with_invalid(round_total(total), invalid), invalid


def round_total(total: np.ndarray) -> np.ndarray:
    """``float32``: integers in units of 2^-24, rounded once, to nearest even."""
    low = total & (1 << 40) - 1
    return round_sum((total - low).astype(np.float64), low.astype(np.float64), UNIT)


def index_products(
    activation: np.ndarray,
    weight: np.ndarray,
    table: np.ndarray,
    keep: np.ndarray | None = None,
    integer: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Results of :func:`reduction` for all vectors and columns, without their histograms.

    activation
        Indices ``[T, K]``; with `integer`, integers of nA bits.
    weight
        Indices ``[K, N]``.
    table
        ``float16[2^nA, 2^nW]``: products of the centroids. With `integer`, line p holds 2^p times
        the weights' centroids, and lines without a bit are not used.
    keep
        ``bool[T, K]``: positions that are counted, by default all.
    :returns: ``float32[T, N]`` and ``bool[T, N]`` invalid.
    :raises ValueError: if a column has more than :data:`MOST` indices.
    """
    total, invalid = index_totals(activation, weight, table, keep, integer)
    return with_invalid(round_total(total), invalid), invalid


def index_totals(
    activation: np.ndarray,
    weight: np.ndarray,
    table: np.ndarray,
    keep: np.ndarray | None = None,
    integer: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """``int64[T, N]`` exact sums in units of 2^-24, and invalid, as in :func:`index_products`.

    With at most :data:`MOST` terms, every partial sum, in any order, is an integer below 2^53, so
    float64 products of matrices are exact.
    """
    tokens, k = activation.shape
    if k > MOST:
        raise ValueError(f"a column must have at most {MOST} indices, not {k}")
    lines = (table.shape[0] - 1).bit_length() if integer else table.shape[0]
    integers, bad = units(table), ~_finite(table)
    total = np.zeros((tokens, weight.shape[1]), np.int64)
    special = np.zeros(total.shape)
    for line in range(lines):
        chosen = activation >> line & 1 == 1 if integer else activation == line
        if keep is not None:
            chosen = chosen & keep
        if not chosen.any():
            continue
        rows = chosen.any(axis=0)  # positions with this index in any vector
        chosen = chosen[:, rows].astype(np.float64)
        total += (chosen @ integers[line][weight[rows]]).astype(np.int64)
        if bad[line].any():
            special += chosen @ bad[line][weight[rows]].astype(np.float64)
    return total, special > 0


def _finite(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, np.float16).view(np.uint16)
    return bits & 0x7C00 != 0x7C00
