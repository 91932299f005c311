"""Bit-exact model of the sparse path: outliers times dequantised weights (KLLM, III-D).

The sum is exact and rounded once; see docs/kllm.md, "Rounding of sums".
"""

import numpy as np

from golden.arith.fixed_sum import UNIT, dot, round_sum, units, with_invalid


def sparse_path(
    value: np.ndarray, weight: np.ndarray, codebook: np.ndarray, keep: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """``float32[..., N]`` sum of value * codebook[weight], and ``bool[..., N]`` invalid.

    Exact but for one rounding to FP32; an empty sum is +0. Two forms: a list of outliers with the
    weights of their rows, or vectors of all K positions with a whole matrix.

    value
        ``float16[..., O]``, O at most 4096.
    weight
        Indices ``[..., O, N]``; or ``[O, N]`` for all of `value`, whose leading axis is then a
        matrix's, so that [T, K] and [K, N] make one product of matrices.
    codebook
        ``float16[2^nW]``.
    keep
        ``bool[..., O]``: values that are summed, by default those that are not 0. Where a summed
        value or its centroid is infinite or NaN, the sum is NaN and ``invalid``.
    """
    bits = np.ascontiguousarray(value, np.float16).view(np.uint16)
    keep = (bits & 0x7FFF != 0) if keep is None else keep
    integers = units(np.where(keep, bits, 0).astype(np.uint16).view(np.float16))
    centroids = units(codebook)
    bad = np.asarray(codebook, np.float16).view(np.uint16) & 0x7C00 == 0x7C00
    vector = weight.ndim > 2 or value.ndim == 1

    def product(multiply, a, b):
        results = multiply(a[..., None, :] if vector else a, b)
        results = results if isinstance(results, tuple) else (results,)
        return [result[..., 0, :] if vector else result for result in results]

    high, low = product(dot, integers, centroids[weight])
    invalid = (keep & (bits & 0x7C00 == 0x7C00)).any(axis=-1)[..., None]
    if bad.any():
        invalid = invalid | (product(np.matmul, keep * 1.0, bad[weight] * 1.0)[0] > 0)
    invalid = np.broadcast_to(invalid, high.shape)
    return with_invalid(round_sum(high, low, 2 * UNIT), invalid), invalid
