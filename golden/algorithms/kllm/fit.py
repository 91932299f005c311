"""Weights fitted to the inputs that they multiply: scale, codebook and indices together.

The format is as in :func:`golden.algorithms.kllm.quantize.quantize_weights`, so the hardware does
not change. The paper trains codebooks by K-Means alone; what is added here is known from GPTQ
(Frantar et al., arXiv:2210.17323): errors count by what they do to the product, trace(E^T H E) with
H the mean of x x^T over the matrix's inputs (:mod:`golden.algorithms.kllm.hessians`), and the error
of a row is taken up by the rows after it.
"""

import numpy as np

from golden.algorithms.kllm.kmeans import binned, kmeans, lloyd, midpoints
from golden.algorithms.kllm.quantize import QuantizedWeights, check_bits, largest_scale

ROUNDS = 8
"""Alternations of scale and codebook; their error hardly falls after."""
DAMPING = 0.1
"""Share of the mean diagonal of H that is added to it: H comes from a few thousand tokens.
SmolLM2-135M predicts other texts better than with 0.03 or 0.3, and much better than with 0.01,
usual elsewhere.
"""

_BLOCK = 64
_COLUMNS = 4096


def fit_weights(
    w: np.ndarray, hessian: np.ndarray, bits: int = 4, *, feedback: bool = True
) -> QuantizedWeights:
    """Quantise a matrix [K, N] of finite floats to indices of `bits` bits, 1 to 8.

    hessian
        [K, K], the mean of x x^T over the inputs.
    feedback
        Whether indices are chosen with error feedback; otherwise the nearest centroids'.
    """
    check_bits(bits)
    w = np.ascontiguousarray(w, np.float32)
    importance = np.diag(hessian).astype(np.float32)
    # Rows that never had an input count a little, so that they get sensible indices.
    importance = np.maximum(importance, 1e-6 * importance.mean() or np.float32(1))
    # A wide matrix, such as the head, trains its codebook on a share of its columns.
    some = w[:, :: -(-w.shape[1] // _COLUMNS)]
    codebook, _ = fit_codebook(some, importance, bits)
    parts = [
        _fit_columns(w[:, first : first + _COLUMNS], importance, codebook)
        for first in range(0, w.shape[1], _COLUMNS)
    ]
    index, scale = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
    if feedback:
        index = choose_with_feedback(w, hessian, index, codebook, scale)
    return QuantizedWeights(index, codebook, scale, np.zeros_like(scale))


def fit_codebook(w: np.ndarray, importance: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """``float16[2^bits]`` centroids and ``float16[N]`` scales, by rounds of one after the other.

    The error is the sum of importance[k] (w[k, n] - scale[n] centroid)^2. A codebook is K-Means
    of w / scale with weights importance * scale^2, a scale the least-squares one for the centroids
    nearest.
    """
    scale = largest_scale(w)
    codebook: np.ndarray | None = None
    for _ in range(ROUNDS):
        wide = scale.astype(np.float32)
        codebook = _codebook(w / wide, importance[:, None] * np.square(wide), 1 << bits, codebook)
        scale = _scales(w, importance, codebook, scale)
    assert codebook is not None
    return codebook, scale


def choose_with_feedback(
    w: np.ndarray,
    hessian: np.ndarray,
    nearest_index: np.ndarray,
    codebook: np.ndarray,
    scale: np.ndarray,
) -> np.ndarray:
    """``uint8[K, N]``: indices for which the product errs less than with `nearest_index`.

    Rows are taken by falling diagonal of H = U U^T, U upper triangular, so that an error e costs
    the square of U^T e, a sum of terms of which the n-th has the first n rows' errors: each row is
    rounded to where its own term is least. A column that errs more than with the nearest
    centroids, which is rare, keeps these.
    """
    k = len(w)
    damped = damped_hessian(hessian)
    order = np.argsort(-np.diag(damped), kind="stable")
    backward = order[::-1]
    upper = np.linalg.cholesky(damped[np.ix_(backward, backward)])[::-1, ::-1]
    upper = (upper / np.diag(upper)).astype(np.float32)
    damped = damped.astype(np.float32)
    centroids, borders = codebook.astype(np.float32), midpoints(codebook).astype(np.float32)
    chosen = np.empty_like(nearest_index)
    # Columns are independent; a few at a time fit into the processor's caches.
    for columns in (slice(n, n + 1024) for n in range(0, w.shape[1], 1024)):
        wanted = w[:, columns] / scale[columns].astype(np.float32)
        ordered = wanted[order]
        rest = ordered.copy()
        index = np.empty(rest.shape, np.uint8)
        for first in range(0, k, _BLOCK):
            block = slice(first, min(first + _BLOCK, k))
            errors = np.empty_like(rest[block])
            for row in range(first, block.stop):
                index[row] = np.searchsorted(borders, rest[row])
                error = errors[row - first] = ordered[row] - centroids[index[row]]
                later = slice(row + 1, block.stop)
                rest[later] += upper[row, later, None] * error
            rest[block.stop :] += upper[block, block.stop :].T @ errors
        found = np.empty_like(index)
        found[order] = index
        near = nearest_index[:, columns]
        worse = _column_errors(wanted - centroids[found], damped) > _column_errors(
            wanted - centroids[near], damped
        )
        chosen[:, columns] = np.where(worse, near, found)
    return chosen


def damped_hessian(hessian: np.ndarray) -> np.ndarray:
    """``float64[K, K]``: H with :data:`DAMPING` on its diagonal."""
    hessian = hessian.astype(np.float64)
    mean = np.diag(hessian).mean()
    return hessian + DAMPING * (mean or 1) * np.eye(len(hessian))


def output_error(w: np.ndarray, quantised: QuantizedWeights, hessian: np.ndarray) -> float:
    """E[||x (W - B)||^2] / E[||x W||^2] of inputs with E[x x^T] = `hessian`."""
    w, hessian = w.astype(np.float64), hessian.astype(np.float64)
    error = _column_errors(w - quantised.dequantize(), hessian).sum()
    return float(error / _column_errors(w, hessian).sum())


def _column_errors(e: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    return np.einsum("kn,kn->n", e, hessian @ e)


def _fit_columns(
    w: np.ndarray, importance: np.ndarray, codebook: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Nearest indices and scales of columns for a fixed codebook."""
    scale = largest_scale(w)
    for _ in range(ROUNDS // 2):
        scale = _scales(w, importance, codebook, scale)
    borders = midpoints(codebook).astype(np.float32)
    return _index(w / scale.astype(np.float32), borders), scale


def _scales(
    w: np.ndarray, importance: np.ndarray, codebook: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """``float16[N]``: least-squares scales for the centroids nearest at `scale`."""
    borders = midpoints(codebook).astype(np.float32)
    q = codebook.astype(np.float32)[_index(w / scale.astype(np.float32), borders)]
    weighted = importance[:, None] * q
    above, below = np.einsum("kn,kn->n", weighted, w), np.einsum("kn,kn->n", weighted, q)
    found = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    found = found.astype(np.float16)
    return np.where(found > 0, found, scale)


def _codebook(x: np.ndarray, weights: np.ndarray, k: int, before: np.ndarray | None) -> np.ndarray:
    """``float16[k]`` of K-Means on bins of `x`.

    Lloyd's steps from the centroids of the round `before`, if these all have values.
    """
    value, mass = binned(x, weights)
    if before is not None:
        inner = np.searchsorted(value, midpoints(before), side="right")
        ends = np.array([0, *inner, len(value)])
        if (np.diff(ends) > 0).all():
            m0, m1 = (np.append(0, np.cumsum(terms)) for terms in (mass, mass * value))
            return lloyd(value, m0, m1, ends).astype(np.float16)
    return kmeans(value, k, mass).astype(np.float16)


def _index(x: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """As :func:`golden.algorithms.kllm.kmeans.nearest`, in float32."""
    index = np.zeros_like(x, np.uint8)
    for border in borders:
        index += x > border
    return index
