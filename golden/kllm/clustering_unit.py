"""Bit-exact model of the clustering unit (KLLM, section IV-A): scaled midpoints, indices."""

import numpy as np

from golden.algorithms.kllm.kmeans import midpoints as midpoints_of
from golden.arith.float_multiply import float_multiply


def midpoints(codebook: np.ndarray) -> np.ndarray:
    """``float16[2^nA - 1]``: midpoints of neighbouring ascending centroids, to be loaded."""
    return midpoints_of(codebook).astype(np.float16)


def scaled_midpoints(midpoints: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """``float16[..., 2^nA - 1]``: the midpoints times each scale, rounded; a scale of 0 means 1."""
    scale = np.asarray(scale, np.float16)
    scale = np.where(scale == 0, np.float16(1), scale)
    return float_multiply(midpoints, scale[..., None])


def cluster(x: np.ndarray, scaled: np.ndarray) -> np.ndarray:
    """``uint8[...]``: number of scaled midpoints below each of `x`, found by bisection.

    Comparisons with a NaN are false. Where the midpoints do not ascend the result is still the
    bisection's.

    x
        ``float16``, of any shape.
    scaled
        ``float16[..., 2^nA - 1]``, its first dimensions broadcast against `x`'s shape.
    """
    count = scaled.shape[-1]
    # NumPy warns of signalling NaNs.
    with np.errstate(invalid="ignore"):
        value, bound = x.astype(np.float32), scaled.astype(np.float32)
        index = np.zeros(np.broadcast_shapes(x.shape, scaled.shape[:-1]), np.intp)
        bound = np.broadcast_to(bound, (*index.shape, count))
        step = (count + 1) // 2
        while step:
            middle = np.take_along_axis(bound, index[..., None] + step - 1, axis=-1)[..., 0]
            index += step * (value > middle)
            step //= 2
    return index.astype(np.uint8)
