"""Nonlinear functions on indices (KLLM, section III-C; equation 2, figure 4).

All take one token and do not change its indices. New scales, zero points, codebooks and outliers
are float64.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from golden.algorithms.kllm.matvec import count_indices, reduce
from golden.algorithms.kllm.quantize import QuantizedActivations


def replace_codebook(
    f: Callable[[np.ndarray], np.ndarray], a: QuantizedActivations
) -> QuantizedActivations:
    """f of every element, by f of every centroid (and outlier) [III-C1].

    The scale belongs to the argument, so the new codebook is f(s_A (C_A - z_A)) at scale 1: it can
    be made offline only where the scale is fixed or f(s x) = s f(x); else it is 2^n evaluations for
    each token. It need not be ascending.
    """
    codebook = f(np.float64(a.scale) * (a.codebook.astype(np.float64) - np.float64(a.zero)))
    value = np.where(a.outlier, f(a.value.astype(np.float64)), 0)
    return QuantizedActivations(a.index, codebook, np.float64(1), np.float64(0), a.outlier, value)


def rms_norm(a: QuantizedActivations, eps: float = 0.0) -> QuantizedActivations:
    """x / sqrt(mean of x^2 + eps), the factor folded into the scale [III-C2].

    A gain per element belongs in the rows of the matrix that follows. Paper: eps = 0.
    """
    square = _sums(a, np.square) / a.index.size
    return _scaled(a, 1 / np.sqrt(square + eps))


def layer_norm(a: QuantizedActivations, eps: float = 0.0) -> QuantizedActivations:
    """(x - mean) / sqrt(mean of (x - mean)^2 + eps): the mean becomes a zero point."""
    mean = _sums(a, lambda x: x) / a.index.size
    centred = dataclasses.replace(
        a,
        zero=np.float64(a.zero) + mean / np.float64(a.scale),
        value=np.where(a.outlier, a.value.astype(np.float64) - mean, 0),
    )
    return rms_norm(centred, eps)


def _sums(a: QuantizedActivations, f: Callable[[np.ndarray], np.ndarray]) -> np.float64:
    """Sum of f(x): 2^n terms for the inliers, count * f(centroid), and one for each outlier."""
    counts = count_indices(a.index[:, None], len(a.codebook), ~a.outlier)
    centroid = np.float64(a.scale) * (a.codebook.astype(np.float64) - np.float64(a.zero))
    outliers = a.value[a.outlier].astype(np.float64)
    return reduce(counts, f(centroid))[0] + f(outliers).sum()


def _scaled(a: QuantizedActivations, factor: np.float64) -> QuantizedActivations:
    scale, value = np.float64(a.scale) * factor, a.value.astype(np.float64) * factor
    return dataclasses.replace(a, scale=scale, value=value)
