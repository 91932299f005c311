"""Errors of K-Means and of uniform levels on a trace, and what outliers do to both (Fig. 2)."""

import dataclasses

import numpy as np

from golden.algorithms.baselines.round_to_nearest import rounded
from golden.algorithms.kllm.kmeans import binned, kmeans, nearest
from golden.algorithms.kllm.quantize import (
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    outlier_count,
    quantize_activations,
    quantize_weights,
)
from golden.trace import Trace, TraceError

BITS = (4, 3)
"""Of weights and inputs alike."""
SCORE_BITS = 4
KEPT_SCORES = 3
"""Largest scores of a row that are not quantised, as this project's attention has it."""
QUERIES = 64
"""Queries of a head whose scores are quantised: evenly over the second half of the tokens."""


@dataclasses.dataclass(frozen=True)
class LayerNoise:
    """Errors of a layer's weights and inputs, root mean squares over the values' own.

    Weights have a scale a channel, inputs a scale a token; K-Means of inputs is fitted to the first
    half of the tokens, and all errors of inputs are of the second half.

    uniform_weights, weights
        Uniform levels, the better of two: around 0, and from the least to the largest. K-Means.
    plain, uniform, inputs
        Uniform levels of all of a token; the same with 1 % of outliers exact; K-Means with these.
    """

    layer: str
    bits: int
    uniform_weights: float
    weights: float
    plain: float
    uniform: float
    inputs: float


@dataclasses.dataclass(frozen=True)
class LayerOutliers:
    """What 1 % of outliers do to a layer's inputs; both halves of the tokens are compared.

    weights_within, inputs_within
        Share of the weights, and of the inliers of a token, within their root mean square.
    range
        Largest magnitude of a token over its inliers' largest: mean.
    centroids, inlier_centroids
        Root mean square of the difference of the halves' 16 centroids, values over their token's
        scale: with outliers, and without.
    threshold
        Root mean square of a token's upper threshold, second half, from the mean of the first,
        over that mean.
    """

    layer: str
    weights_within: float
    inputs_within: float
    range: float
    centroids: float
    inlier_centroids: float
    threshold: float


@dataclasses.dataclass(frozen=True)
class ScoreNoise:
    """Errors of attention's outputs by scores of 4 bits, over the outputs' root mean square.

    kept
        Number of scores of a row that are exact, its largest.
    integers, kmeans
        Integers times the row's scale; centroids fitted to the first half of the queries. Both of
        the second half.
    """

    layer: int
    kept: int
    integers: float
    kmeans: float


@dataclasses.dataclass(frozen=True)
class Noise:
    """All of a trace's errors: of layers at 4 and 3 bits, of outliers, and of scores."""

    layers: list[LayerNoise]
    outliers: list[LayerOutliers]
    scores: list[ScoreNoise]


def noise_of(trace: Trace) -> Noise:
    """Errors of a trace with activations, matrices and attention; ``TraceError`` without."""
    if not trace.w:
        raise TraceError("it holds no matrices")
    return Noise(
        [layer_noise(trace, name, bits) for bits in BITS for name in trace.w],
        [layer_outliers(trace, name) for name in trace.w],
        [
            score_noise(trace, layer, kept)
            for layer in range(len(trace.attention.q))
            for kept in (0, KEPT_SCORES)
        ],
    )


def size(x: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def uniform_error(x: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Errors by 2^bits levels of one scale along `axis`, the better of the two kinds."""
    low, high = (part(axis=axis, keepdims=True) for part in (x.min, x.max))
    step = (high - low) / ((1 << bits) - 1)
    step = np.where(step > 0, step, 1)
    kinds = rounded(x, bits, axis) - x, low + np.rint((x - low) / step) * step - x
    return min(kinds, key=size)


def layer_noise(trace: Trace, name: str, bits: int) -> LayerNoise:
    """Errors of one layer's weights and inputs with indices of `bits` bits."""
    w, x = trace.w[name].astype(np.float64), trace.x[name]
    half = len(x) // 2
    outlier = dynamic_outliers(x, outlier_count(x.shape[1]))
    scale = inlier_scale(x, outlier).astype(np.float64)[:, None]
    exact = x.astype(np.float64)
    codebook = fit_activation_codebook(
        (exact / scale)[:half][~outlier[:half]].astype(np.float32), bits
    )
    found = quantize_activations(x[half:], codebook, outlier[half:]).dequantize()
    tail, kept = exact[half:], outlier[half:]
    inliers = np.where(kept, 0, tail)
    return LayerNoise(
        name,
        bits,
        size(uniform_error(w, bits, 0)) / size(w),
        size(quantize_weights(w, bits).dequantize() - w) / size(w),
        size(uniform_error(tail, bits, 1)) / size(tail),
        size(np.where(kept, 0, uniform_error(inliers, bits, 1))) / size(tail),
        size(found - tail) / size(tail),
    )


def layer_outliers(trace: Trace, name: str) -> LayerOutliers:
    """What outliers do to one layer's inputs."""
    w, x = trace.w[name].astype(np.float64), trace.x[name]
    half, count = len(x) // 2, outlier_count(x.shape[1])
    outlier = dynamic_outliers(x, count)
    exact = x.astype(np.float64)
    scale = inlier_scale(x, outlier).astype(np.float64)[:, None]
    largest = np.abs(exact).max(axis=1, keepdims=True)
    upper = np.sort(exact, axis=1)[:, -count]
    inliers = np.where(outlier, np.nan, exact)
    spread = np.sqrt(np.nanmean(np.square(inliers), axis=1, keepdims=True))
    channel = np.sqrt(np.square(w).mean(axis=0))
    everything = np.ones_like(outlier)
    return LayerOutliers(
        name,
        float(np.mean(np.abs(w) < channel)),
        float(np.mean((np.abs(inliers) < spread)[~outlier])),
        float(np.mean(largest / scale)),
        _apart(exact / largest, everything, half),
        _apart(exact / scale, ~outlier, half),
        size(upper[half:] / upper[:half].mean() - 1),
    )


def _apart(x: np.ndarray, keep: np.ndarray, half: int) -> float:
    first, second = (kmeans(x[at][keep[at]], 16) for at in (slice(half), slice(half, None)))
    return size(first - second)


def score_noise(trace: Trace, layer: int, kept: int) -> ScoreNoise:
    """Errors of one layer's attention, all heads, causal.

    The trace must have attention (``Trace.attention``).
    """
    q, k, v, scale = trace.attention
    group = q.shape[1] // k.shape[1]
    queries, keys, values = (
        q[layer].astype(np.float64),
        *(np.repeat(of[layer].astype(np.float64), group, axis=0) for of in (k, v)),
    )
    tokens = queries.shape[1]
    at = np.unique(np.linspace(tokens // 2, tokens - 1, QUERIES).astype(int))
    scores = queries[:, at] @ keys.swapaxes(1, 2) * scale
    live = np.broadcast_to(np.arange(tokens) <= at[:, None], scores.shape)
    scores = np.where(live, scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=2, keepdims=True))
    scores /= scores.sum(axis=2, keepdims=True)
    exact = scores @ values
    last = np.sort(scores, axis=2)[..., -kept][..., None] if kept else np.inf
    out = scores >= last
    inliers = np.where(out, 0, scores)
    largest = inliers.max(axis=2, keepdims=True)
    unit = inliers / largest
    half, quantised = len(at) // 2, live & ~out
    centres, masses = binned(unit[:, :half][quantised[:, :half]].astype(np.float32))
    codebook = kmeans(centres, 1 << SCORE_BITS, masses)
    top = (1 << SCORE_BITS) - 1
    errors = [
        size((np.where(quantised, of * largest, out * scores) @ values - exact)[:, half:])
        / size(exact[:, half:])
        for of in (np.rint(unit * top) / top, codebook[nearest(unit, codebook)])
    ]
    return ScoreNoise(layer, kept, *errors)
