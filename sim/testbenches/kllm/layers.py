"""Layers of a trace for the testbenches of lanes and core: vectors, quantised matrix, codebooks."""

import dataclasses

import numpy as np

from golden.algorithms.kllm.quantize import (
    QuantizedWeights,
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    quantize_weights,
)
from golden.kllm.kllm_core import Tables, tables_of
from golden.trace import Trace
from sim.testbenches.operands import to_fp16, vectors_by_name


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """Vectors and the matrix that they are multiplied by.

    x
        ``float16[vectors, K]``.
    weights
        A matrix [K, N].
    codebook
        Centroids of the activations.
    tables
        Tables of both codebooks.
    """

    x: np.ndarray
    weights: QuantizedWeights
    codebook: np.ndarray
    tables: Tables


def layers_of(
    trace: Trace, k: int, n: int, activation_bits: int, weight_bits: int, outliers: int
) -> tuple[list[Layer], list[str]]:
    """The trace's layers, their vectors cut or joined to K values and their matrices to [K, N]."""
    arrays = vectors_by_name(trace)
    x_of = {name.removeprefix("x/"): array for name, array in arrays.items()}
    names = [name for name in x_of if name in trace.w]
    w_of = trace.w if names else {name: array.T for name, array in x_of.items()}
    names = names or list(x_of)
    sizes = f"vectors cut from or joined to {k} values, matrices to {k} rows and {n} columns"
    taken = ", ".join(name for name in arrays if name.removeprefix("x/") in names)
    notes = [f"Layers are {taken}, {sizes}, repeated where there is not enough."]
    layers = []
    for name in names:
        half, more = to_fp16(name, x_of[name])
        notes += more
        x = np.nan_to_num(_rows(half.T, k).T, posinf=6e4, neginf=-6e4)
        matrix = np.asarray(w_of[name], np.float32)
        blocks = max(1, len(matrix) // k)
        wide = np.concatenate([_rows(matrix[block * k :], k) for block in range(blocks)], axis=1)
        w = np.resize(wide.T, (n, k)).T
        outlier = dynamic_outliers(x, min(outliers, k))
        scale = inlier_scale(x, outlier).astype(np.float32)[:, None]
        # A vector of outliers only has no inliers: its codebook is fitted to the outliers.
        inliers = np.ones_like(outlier) if outlier.all() else ~outlier
        samples = (x.astype(np.float32) / scale)[inliers]
        codebook = fit_activation_codebook(samples, activation_bits)
        weights = quantize_weights(np.clip(np.nan_to_num(w), -6e4, 6e4), weight_bits)
        layers.append(Layer(x, weights, codebook, tables_of(codebook, weights.codebook)))
    return layers, notes


def _rows(matrix: np.ndarray, k: int) -> np.ndarray:
    """The first k rows; fewer rows are repeated."""
    return matrix[np.arange(k) % len(matrix)]
