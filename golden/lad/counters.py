"""Mode counters of LAD's tile, packed into rows of its memory."""

import numpy as np


def counters_in(
    rows: np.ndarray, positions: np.ndarray, per_row: int, word: int, bits: int, intervals: int
) -> np.ndarray:
    """Counters int[positions, I] from rows of packed words."""
    found = np.zeros((len(positions), intervals), np.int64)
    digits = np.unpackbits(rows[positions // per_row].view(np.uint8), axis=1, bitorder="little")
    start = positions % per_row * word
    for i in range(intervals):
        places = start[:, None] + i * bits + np.arange(bits)
        found[:, i] = np.take_along_axis(digits, places, axis=1) @ (1 << np.arange(bits))
    return found


def set_counters(
    rows: np.ndarray,
    positions: np.ndarray,
    counters: np.ndarray,
    per_row: int,
    word: int,
    bits: int,
) -> None:
    """Write counters int[positions, I] into their rows, with zeros in all other bits of a word."""
    digits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
    row, start = positions // per_row, positions % per_row * word
    used = counters.shape[1] * bits
    values = (counters[:, :, None] >> np.arange(bits) & 1).reshape(len(positions), used)
    values = np.pad(values, ((0, 0), (0, word - used)))
    digits[row[:, None], start[:, None] + np.arange(word)] = values
    rows[...] = np.packbits(digits, axis=1, bitorder="little").view(np.uint16)
