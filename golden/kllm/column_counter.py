"""Bit-exact model of the column counter: histogram of a column's indices (KLLM, IV-B)."""

import numpy as np

from golden.kllm.concat_unit import concat_unit
from golden.kllm.index_distribution_counter import index_distribution


def column_counts(
    activation: np.ndarray,
    weight: np.ndarray,
    mask: np.ndarray,
    integer: np.ndarray,
    last: np.ndarray,
    activation_bits: int,
    weight_bits: int,
) -> np.ndarray:
    """``int64[columns, 2^(activation_bits + weight_bits)]``: the counts of every column.

    activation, weight, mask
        [beats, segment]: indices, and the mask of those that are counted.
    integer, last
        [beats]: integer mode of the beat; whether it ends a column, as the last beat must.
    """
    index = concat_unit(activation, weight, weight_bits)
    counts = index_distribution(index, mask, integer, activation_bits, weight_bits)
    ends = np.flatnonzero(last)
    if not np.asarray(last, bool)[-1:].any():
        raise ValueError("last must be set on the last beat")
    return np.add.reduceat(counts, np.append(0, ends[:-1] + 1), axis=0)
