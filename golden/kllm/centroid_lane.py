"""Bit-exact model of the lanes that multiply fixed-point centroids, and how these are made.

With C_A = a s_A 2^(1 - bits) and C_B = b s_B 2^(1 - bits), a and b integers of `bits` bits, and
s = s_A s_B, a result is

    r s_b (s_a sum C_A C_B + sum x C_B) = r (s_b s) (s_a 2^(2 - 2 bits) sum a b + sum x (C_B / s))

So the codebooks' scales cost no hardware: s_b s and C_B / s are made offline.
"""

import dataclasses

import numpy as np

from golden.kllm.column_scale import column_scale
from golden.kllm.sparse_path import sparse_path

MOST = 1 << 53
"""Below this, float64 holds a sum of integers exactly."""


@dataclasses.dataclass(frozen=True, eq=False)
class FixedCodebooks:
    """Two codebooks in fixed point.

    activations, weights
        ``int64[2^nA]``, ``int64[2^nW]``: a and b, of magnitudes up to 2^(bits - 1) - 1.
    scale
        s: C_A C_B is about a b s 2^(2 - 2 bits).
    """

    activations: np.ndarray
    weights: np.ndarray
    scale: float

    def column_scales(self, s_b: np.ndarray) -> np.ndarray:
        """``float16``: s_b s."""
        return (s_b.astype(np.float64) * self.scale).astype(np.float16)

    def sparse_centroids(self, codebook: np.ndarray) -> np.ndarray:
        """``float16[2^nW]``: C_B / s, for the outliers."""
        return (codebook.astype(np.float64) / self.scale).astype(np.float16)


def fixed_codebooks(codebook_a: np.ndarray, codebook_b: np.ndarray, bits: int) -> FixedCodebooks:
    """Both codebooks as integers relative to their largest magnitudes.

    codebook_a, codebook_b
        Finite ``float16``. One of zeros is integers of 0, whatever their unit.
    """
    largest = (1 << bits - 1) - 1
    integers, scale = [], 1.0
    for codebook in (codebook_a, codebook_b):
        values = codebook.astype(np.float64)
        unit = (np.abs(values).max() or 1.0) / largest
        if not np.isfinite(unit):
            raise ValueError("a codebook must be finite")
        integers.append(np.rint(values / unit).astype(np.int64))
        scale *= unit * 2.0 ** (bits - 1)
    activations, weights = integers
    return FixedCodebooks(activations, weights, scale)


def centroid_sum(activation: np.ndarray, weight: np.ndarray, bits: int) -> np.ndarray:
    """``float32[T, N]``: sum of products in units of 2^(2 - 2 bits), rounded once; zero is +0.

    activation, weight
        Integers ``[T, K]`` and ``[K, N]`` of `bits` bits.
    :raises ValueError: if a sum may be 2^53 or more.
    """
    if activation.shape[-1] << 2 * (bits - 1) > MOST:
        raise ValueError(f"{activation.shape[-1]} products of {bits} bits may add up to over 2^53")
    total = activation.astype(np.float64) @ weight.astype(np.float64)
    return np.ldexp((total + 0.0).astype(np.float32), np.int32(2 - 2 * bits))


def centroid_lane(
    activation: np.ndarray,
    weight: np.ndarray,
    value: np.ndarray,
    outlier: np.ndarray,
    fixed: np.ndarray,
    codebook: np.ndarray,
    s_a: np.ndarray,
    r: np.ndarray,
    s_b: np.ndarray,
    bits: int,
    kept: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """``float16[T, N]`` results, and ``bool[T, N]`` invalid: the result is NaN.

    activation
        Fixed-point centroids ``[T, K]``, 0 at outliers.
    weight
        Indices ``[K, N]``.
    value, outlier
        ``float16[T, K]``, ``bool[T, K]``: the positions of the sparse sum.
    fixed, codebook
        Integers ``[2^nW]``, and ``float16[2^nW]`` of the sparse sum.
    s_a, r, s_b
        ``float16``: ``[T]``, ``[T]``, ``[N]``.
    kept
        ``float32[T, N]``: sums of earlier rows of the matrix.
    """
    s = centroid_sum(activation, fixed[weight], bits)
    rows = outlier.any(axis=0)  # the others add nothing to any vector
    o, _ = sparse_path(value[:, rows], weight[rows], codebook, outlier[:, rows])
    y = column_scale(s, o, s_a[:, None], r[:, None], s_b, kept)
    return y, np.isnan(y)
