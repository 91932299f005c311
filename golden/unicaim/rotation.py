"""Rotation of keys and queries before they meet the cells' levels.

A few elements of a key are much larger than the rest, and the steps between levels must follow
them. An orthogonal transform spreads them over all elements. It changes no inner product, so the
exact scores and their order do not change: signs, then a Hadamard matrix in its natural order. This
is the project's own; the paper writes keys as they are.
"""

import random

import numpy as np


def signs(d: int, seed: int) -> np.ndarray:
    """The signs, +1 or -1, of the ``d`` elements, drawn from ``seed``: int64[d]."""
    drawn = random.Random(seed).getrandbits(d)
    return 1 - 2 * np.array([drawn >> element & 1 for element in range(d)])


def transform(x: np.ndarray, seed: int) -> np.ndarray:
    """:func:`hadamard` of ``x`` [..., d] times the signs."""
    return hadamard(x * signs(x.shape[-1], seed).astype(x.dtype))


def hadamard(x: np.ndarray) -> np.ndarray:
    """Hadamard transform [..., d] of ``x`` [..., d], not divided by the root of d.

    Exact for integers that leave room for log2 d more bits. Raises ``ValueError`` unless d is a
    power of two.
    """
    d = x.shape[-1]
    if d & (d - 1):
        raise ValueError(f"d must be a power of two, not {d}")
    half = 1
    while half < d:
        pairs = x.reshape(*x.shape[:-1], -1, 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([first + second, first - second], axis=-2).reshape(x.shape)
        half *= 2
    return x


def rotated(x: np.ndarray, seed: int) -> np.ndarray:
    """``x`` [..., d] rotated: :func:`transform` over the root of d, of the same lengths.

    Where d is no power of two, such as 96, the largest power of two that divides it is the length
    of the parts that are rotated, all alike.
    """
    d = x.shape[-1]
    part = d & -d
    parts = transform(x.reshape(*x.shape[:-1], d // part, part), seed)
    return (parts / x.dtype.type(np.sqrt(part))).reshape(x.shape)
