"""Bit-exact model of the index distribution counter: histogram of a beat's indices."""

import numpy as np


def index_distribution(
    index: np.ndarray,
    mask: np.ndarray,
    integer_mode: np.ndarray,
    activation_bits: int,
    weight_bits: int,
) -> np.ndarray:
    """``int64[any, 2^(activation_bits + weight_bits)]``: counts of each row of indices.

    index
        Integers [any, inputs].
    mask
        [any, inputs]: the indices that are counted.
    integer_mode
        [any]: whether the upper part a of a row's indices is an integer. Line p of the counts then
        counts the lower parts of indices with bit p of a set; lines from `activation_bits` on are
        zero.
    """
    index, bins = np.asarray(index, np.int64), 1 << (activation_bits + weight_bits)
    mask, integer = np.asarray(mask, bool), np.asarray(integer_mode, bool)[:, None]
    a, w = index >> weight_bits, index & ((1 << weight_bits) - 1)
    counts = _histograms(index, mask & ~integer, bins)
    for bit in range(activation_bits):
        line = bit << weight_bits | w
        counts += _histograms(line, mask & integer & (a >> bit & 1 == 1), bins)
    return counts


def _histograms(index: np.ndarray, mask: np.ndarray, bins: int) -> np.ndarray:
    rows = np.arange(len(index))[:, None]
    counted = (rows * bins + index)[mask]
    return np.bincount(counted, minlength=len(index) * bins).reshape(len(index), bins)
