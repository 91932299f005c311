"""How often each index occurs among a few."""

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
        [any, inputs]: which of them count.
    integer_mode
        [any]: whether the higher half a of a row's indices is a number. Line p of the counts is
        then of the lower halves of indices whose bit p of a is set; lines from `activation_bits` on
        are zero.
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
