"""Columns of quantised products for the testbenches of KLLM's lanes, from a trace."""

import dataclasses

import numpy as np

from golden.algorithms.kllm.quantize import (
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    outlier_count,
    quantize_activations,
    quantize_weights,
)
from golden.trace import Trace
from sim.testbenches.kllm.orizuru import vectors_of

MOST = 32  # vectors, and columns of a matrix


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """Products of a vector and a matrix's column, one in each row.

    activation, weight
        ``uint8[columns, K]`` indices.
    outlier
        ``bool[columns, K]``.
    value
        ``float16[columns, K]``: outliers' values, 0 elsewhere.
    codebook_a, codebook_b
        ``float16`` centroids of all.
    notes
        Changes that were made to the trace.
    """

    activation: np.ndarray
    weight: np.ndarray
    outlier: np.ndarray
    value: np.ndarray
    codebook_a: np.ndarray
    codebook_b: np.ndarray
    notes: list[str]


def columns_of(
    trace: Trace, k: int, activation_bits: int, weight_bits: int, columns: int
) -> Columns:
    """`columns` columns of K = `k` positions."""
    count = min(columns, MOST)
    x, notes = vectors_of(trace, k, count)
    only = Trace(w=trace.w) if trace.w else trace
    w, more = vectors_of(only, k, count)
    x, w = (np.nan_to_num(a.astype(np.float32), posinf=6e4, neginf=-6e4) for a in (x, w))
    x = x.astype(np.float16)
    outlier = dynamic_outliers(x, min(outlier_count(k), (k - 1) // 2))
    scale = inlier_scale(x, outlier)
    samples = (x.astype(np.float32) / scale[:, None].astype(np.float32))[~outlier]
    a = quantize_activations(x, fit_activation_codebook(samples, activation_bits), outlier, scale)
    b = quantize_weights(np.ascontiguousarray(w.T), weight_bits)
    vector = np.arange(columns) % count
    column = np.arange(columns) // count * 7 + vector  # another column each time around
    column %= count
    return Columns(
        activation=a.index[vector],
        weight=np.ascontiguousarray(b.index.T[column]),
        outlier=a.outlier[vector],
        value=a.value[vector],
        codebook_a=a.codebook,
        codebook_b=b.codebook,
        notes=[*notes, *more, "Both are quantised, each with one codebook for all vectors."],
    )
