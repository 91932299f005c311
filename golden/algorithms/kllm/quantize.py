"""K-Means quantisation of weights and activations (KLLM, sections III-A and V-A; equation 1).

    A[k] = s_A (C_A[index] - z_A)        B[k, n] = s_B[n] (C_B[index] - z_B[n])

Weights: one codebook for each matrix, one scale for each output channel. Activations: one codebook,
trained offline, for all tokens, one scale for each token; outliers are not quantised.
Codebooks, scales, zero points and outliers are FP16, indices ``uint8``. Zero points are 0 here;
:func:`golden.algorithms.kllm.nonlinear.layer_norm` makes others.
"""

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from math import ceil

import numpy as np

from golden.algorithms.kllm.kmeans import binned, kmeans, nearest
from golden.arith.formats import Values
from golden.kllm.orizuru import order_key

_MANY = 1 << 16
"""Number of samples above which a codebook is fitted to bins of them."""


@dataclasses.dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """A matrix B [K, N]: ``index`` [K, N], ``codebook`` [2^nW], ``scale`` and ``zero`` [N]."""

    index: np.ndarray
    codebook: np.ndarray
    scale: np.ndarray
    zero: np.ndarray

    def dequantize(self, dtype: type = np.float64) -> np.ndarray:
        """B itself, [K, N]."""
        codebook, scale, zero = _cast(dtype, self.codebook, self.scale, self.zero)
        return (codebook[self.index] - zero) * scale


@dataclasses.dataclass(frozen=True, eq=False)
class QuantizedActivations:
    """Vectors A [..., K], one for each token.

    index
        [..., K]; an outlier's index names the nearest centroid and is not used.
    codebook
        [2^nA].
    scale, zero
        [...].
    outlier
        ``bool[..., K]``: which elements are outliers.
    value
        [..., K]: the outliers' values, 0 elsewhere.
    """

    index: np.ndarray
    codebook: np.ndarray
    scale: Values
    zero: Values
    outlier: np.ndarray
    value: np.ndarray

    def token(self, *at: int) -> "QuantizedActivations":
        """One token's vector."""
        arrays = (self.index, self.scale, self.zero, self.outlier, self.value)
        index, scale, zero, outlier, value = (np.asarray(array)[at] for array in arrays)
        return QuantizedActivations(index, self.codebook, scale, zero, outlier, value)

    def dequantize(self, dtype: type = np.float64) -> np.ndarray:
        """A itself, [..., K]."""
        arrays = (self.codebook, self.value, self.scale, self.zero)
        codebook, value, scale, zero = _cast(dtype, *arrays)
        inliers = (codebook[self.index] - zero[..., None]) * scale[..., None]
        return np.where(self.outlier, value, inliers)


def _cast(dtype: type, *arrays: Values) -> Iterator[np.ndarray]:
    return (np.asarray(array, dtype) for array in arrays)


def quantize_weights(w: np.ndarray, bits: int = 4) -> QuantizedWeights:
    """Quantise a matrix [K, N] of finite floats to indices of `bits` bits, 1 to 8.

    A channel's scale is its largest magnitude, in FP16; 1 for a channel of zeros.
    """
    w = np.asarray(w)
    if w.ndim != 2 or w.size == 0 or w.dtype.kind != "f" or not np.isfinite(w).all():
        raise ValueError(f"w must be a matrix of finite floats, not {w.dtype}{list(w.shape)}")
    check_bits(bits)
    scale = largest_scale(w)
    x = w / scale.astype(np.result_type(w, np.float32))
    codebook = kmeans(x, 1 << bits).astype(np.float16)
    return QuantizedWeights(nearest(x, codebook), codebook, scale, np.zeros_like(scale))


def largest_scale(w: np.ndarray) -> np.ndarray:
    """``float16[N]``: the largest magnitude of each channel of [K, N]; 1 for one of zeros."""
    return _scale(np.abs(w).max(axis=0))


def outlier_count(n: int, share: float = 0.01) -> int:
    """Outliers at each end of a token of `n` values: ceil(share / 2 * n), at most `n`.

    ``share``, 0 to 1, is of both ends together, and exactly the decimal that it prints as.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"the share of outliers must be between 0 and 1, not {share}")
    return ceil(Fraction(str(share)) / 2 * n)


def dynamic_outliers(x: np.ndarray, k: int) -> np.ndarray:
    """``bool[..., K]``: the `k` largest and the `k` smallest values of each token, ``float16``.

    The elements that ``orizuru`` pops: ties go to the lower index at both ends.
    """
    if not 0 <= k <= x.shape[-1]:
        raise ValueError(f"k must be between 0 and N = {x.shape[-1]}, not {k}")
    outlier = np.zeros(x.shape, bool)
    if k == 0:
        return outlier
    key = order_key(x)
    for sort_key in (key, ~key):
        last = np.partition(sort_key, k - 1, axis=-1)[..., k - 1 : k]
        below, ties = sort_key < last, sort_key == last
        room = k - np.count_nonzero(below, axis=-1, keepdims=True)
        # Sums are slow, and few tokens have more ties than room.
        some = np.count_nonzero(ties, axis=-1) > room[..., 0]
        ties[some] &= np.cumsum(ties[some], axis=-1) <= room[some]
        outlier |= below | ties
    return outlier


def static_outliers(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """``bool[..., K]``: values beyond thresholds found offline (KLLM-S)."""
    return (x < low) | (x > high)


def inlier_scale(x: np.ndarray, outlier: np.ndarray) -> np.ndarray:
    """``float16[...]``: the largest magnitude of each token's inliers; 1 where that is 0."""
    return _scale(np.where(outlier, 0, np.abs(x)).max(axis=-1))


def fit_activation_codebook(
    samples: np.ndarray, bits: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """``float16[2^bits]``: centroids of inliers divided by their tokens' scales, from calibration.

    ``weights`` are the samples' sensitivities, e.g. diagonal Fisher information [V-A].
    """
    check_bits(bits)
    if samples.size > _MANY:
        samples, weights = binned(samples, weights)
    return kmeans(samples, 1 << bits, weights).astype(np.float16)


def quantize_activations(
    x: np.ndarray, codebook: np.ndarray, outlier: np.ndarray, scale: Values | None = None
) -> QuantizedActivations:
    """Quantise tokens [..., K] of finite ``float16`` values, those marked `outlier` left out.

    ``scale`` is the tokens' own (:func:`inlier_scale`) when not given; KLLM-S gives a fixed one.
    """
    x = _half(x)
    if scale is None:
        scale = inlier_scale(x, outlier)
    scale = np.broadcast_to(np.asarray(scale, np.float16), x.shape[:-1])
    index = nearest(x.astype(np.float64) / scale[..., None], codebook)
    value = np.zeros_like(x)
    value[outlier] = x[outlier] + np.float16(0)
    return QuantizedActivations(index, codebook, scale, np.zeros_like(scale), outlier, value)


def _half(x: np.ndarray) -> np.ndarray:
    if not isinstance(x, np.ndarray) or x.dtype != np.float16 or not np.isfinite(x).all():
        raise ValueError("activations must be finite float16 values")
    return x


def check_bits(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"bits must be between 1 and 8, not {bits}")


def _scale(magnitude: np.ndarray) -> np.ndarray:
    """Magnitudes in FP16, 1 where that is 0."""
    if magnitude.max() > np.finfo(np.float16).max:
        raise ValueError(f"magnitude {magnitude.max()} is too large for an FP16 scale")
    scale = magnitude.astype(np.float16)
    return np.where(scale > 0, scale, np.float16(1))
