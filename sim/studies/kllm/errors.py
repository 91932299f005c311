"""Errors of a trace's products by counting and by fixed-point centroids."""

import dataclasses

import numpy as np

from golden.algorithms.kllm.quantize import (
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    outlier_count,
    quantize_weights,
)
from golden.kllm.centroid_lane import centroid_lane, fixed_codebooks
from golden.kllm.clustering_unit import cluster, scaled_midpoints
from golden.kllm.kllm_core import tables_of
from golden.kllm.pe_lane import pe_lane
from golden.trace import Trace, TraceError


@dataclasses.dataclass(frozen=True)
class LayerErrors:
    """Errors of one layer's products: root of their sum of squares over the exact products' root.

    counting
        By :class:`PeLane`, from the products of the trace's own vectors and matrix.
    centroids
        By :class:`CentroidLane`, likewise; by bits of a centroid.
    apart
        How far these are from the former.
    """

    layer: str
    counting: float
    centroids: dict[int, float]
    apart: dict[int, float]


def errors_of(trace: Trace, bits: int, widths: tuple[int, ...]) -> list[LayerErrors]:
    """Errors of every layer that has vectors and a matrix, with indices of `bits` bits.

    :raises TraceError: if the trace has none.
    """
    if not trace.w:
        raise TraceError("it holds no matrices")
    found = []
    for name, w in trace.w.items():
        x = trace.x[name]
        outlier = dynamic_outliers(x, outlier_count(x.shape[1]))
        s_a = inlier_scale(x, outlier)
        samples = (x.astype(np.float32) / s_a[:, None].astype(np.float32))[~outlier]
        codebook = fit_activation_codebook(samples, bits)
        weights = quantize_weights(w, bits)
        tables = tables_of(codebook, weights.codebook)
        index = np.stack(
            [
                cluster(row, scaled_midpoints(tables.midpoints, scale))
                for row, scale in zip(x, s_a, strict=True)
            ]
        )
        value, one = np.where(outlier, x, np.float16(0)), np.ones(len(x), np.float16)
        by_counting, _ = pe_lane(
            index,
            weights.index,
            ~outlier,
            value,
            outlier,
            tables.products,
            weights.codebook,
            s_a,
            one,
            weights.scale,
        )
        exact = x.astype(np.float64) @ w.astype(np.float64)
        errors, apart = {}, {}
        for width in widths:
            fixed = fixed_codebooks(codebook, weights.codebook, width)
            y, _ = centroid_lane(
                np.where(outlier, 0, fixed.activations[index]),
                weights.index,
                value,
                outlier,
                fixed.weights,
                fixed.sparse_centroids(weights.codebook),
                s_a,
                one,
                fixed.column_scales(weights.scale),
                width,
            )
            errors[width] = _off(y, exact)
            apart[width] = _off(y, by_counting.astype(np.float64))
        found.append(LayerErrors(name, _off(by_counting, exact), errors, apart))
    return found


def _off(y: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(y.astype(np.float64) - exact) / np.linalg.norm(exact))
