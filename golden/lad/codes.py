"""Bit-exact model of keys in a few bits, and of the scores estimated from them."""

import numpy as np

from golden.arith.adder_tree import adder_tree
from golden.arith.float_multiply import float_multiply
from golden.arith.float_to_fixed import float_to_fixed
from golden.arith.formats import from_bits, to_bits
from golden.lad.arithmetic import FP16, Arithmetic


def encode(
    key: np.ndarray, bits: int, arithmetic: Arithmetic = FP16
) -> tuple[np.ndarray, np.ndarray]:
    """Codes int[..., d] of keys float16[..., d], and their units, float16[...]."""
    largest = arithmetic.number((1 << bits - 1) - 1)
    magnitude = to_bits(key)
    magnitude = magnitude & magnitude.dtype.type((1 << 8 * magnitude.itemsize - 1) - 1)
    # NaN if there is one.
    peak = from_bits(magnitude.max(axis=-1, keepdims=True), arithmetic.number)
    scale = float_multiply(arithmetic.reciprocal(peak), largest)
    codes = float_to_fixed(float_multiply(scale, key), bits)["o"]
    return codes, float_multiply(peak, arithmetic.number(1 / float(largest)))[..., 0]


def insert(rows: np.ndarray, codes: np.ndarray, position: int, bits: int) -> np.ndarray:
    """Rows uint16[2, d] from the row of the position's first bit on, with its codes.

    Bits of earlier positions are kept, bits of later ones cleared.
    """
    offset = position * bits % 16
    kept = rows[0].astype(np.int64) & (1 << offset) - 1
    wide = kept | (codes & (1 << bits) - 1) << offset
    return np.stack([wide & 0xFFFF, wide >> 16]).astype(np.uint16)


def decode(rows: np.ndarray, positions: int, bits: int) -> np.ndarray:
    """Codes int[positions, d] in the rows uint16[rows, d] of a kv head."""
    stream = (rows[:, None, :] >> np.arange(16, dtype=np.uint16)[:, None]) & 1
    stream = stream.reshape(-1, rows.shape[1])[: positions * bits]
    digits = stream.reshape(positions, bits, rows.shape[1]).astype(np.int64)
    weights = 1 << np.arange(bits)
    weights[-1] = -weights[-1]
    return np.einsum("pbd,b->pd", digits, weights)


def code_scores(q: np.ndarray, codes: np.ndarray, units: np.ndarray) -> np.ndarray:
    """float16[..., positions]: (q . code) unit, of ``q`` [..., d]."""
    if len(codes) == 0:
        return np.zeros((*q.shape[:-1], 0), q.dtype)
    products = float_multiply(q[..., None, :], codes.astype(q.dtype))
    return float_multiply(adder_tree(products), units)
