"""Mode counters of LAD's tile, packed into rows of its memory."""

import numpy as np


def counters_in(
    rows: np.ndarray, positions: np.ndarray, per_row: int, word: int, bits: int, intervals: int
) -> np.ndarray:
    """Counters int[positions, I] from rows of packed words."""
    start = (positions % per_row * word)[:, None] + bits * np.arange(intervals)
    # A counter of up to 16 bits lies in two neighbouring elements of 16 bits, or in one.
    elements = np.zeros((len(positions), rows.shape[1] + 1), np.int64)
    elements[:, :-1] = rows[positions // per_row]
    first = start // 16
    pair = [np.take_along_axis(elements, first + k, axis=1) for k in (0, 1)]
    return (pair[0] | pair[1] << 16) >> start % 16 & (1 << bits) - 1


def set_counters(
    rows: np.ndarray,
    positions: np.ndarray,
    counters: np.ndarray,
    per_row: int,
    word: int,
    bits: int,
) -> None:
    """Write counters int[positions, I] into their rows, with zeros in all other bits of a word."""
    changed, row = np.unique(positions // per_row, return_inverse=True)
    digits = np.unpackbits(rows[changed].view(np.uint8), axis=1, bitorder="little")
    start = positions % per_row * word
    used = counters.shape[1] * bits
    values = np.zeros((len(positions), word), np.uint8)
    values[:, :used] = (counters[:, :, None] >> np.arange(bits) & 1).reshape(-1, used)
    digits[row[:, None], start[:, None] + np.arange(word)] = values
    rows[changed] = np.packbits(digits, axis=1, bitorder="little").view(np.uint16)
