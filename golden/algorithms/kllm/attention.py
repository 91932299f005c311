"""Attention on K-Means indices and integer weights (KLLM, sections III-B2 and III-D).

For one query: with indices and scales of q, of each k[t] and v[t],

    score[t] = round16(s_q s_k[t] sum of C_q[.] C_k[.]),   s_k[t] = round16(largest / sqrt(d))
    p = softmax(score), FP16        w[t] = round16(p[t] s_v[t])
    y = round16(s_w / 15 sum over inliers of i[t] C_v[.] + sum over outliers of w[t] C_v[.])

i[t], 0 to 15, is w[t] in units of s_w / 15, with s_w the largest w that is not an outlier: the
counters' increments. The paper quantises the scores to integers and leaves their scale, and the
scale of each v[t], open; folding s_v into the weights makes one scale of all.

Fitted, q and k are first changed in ways that leave every probability as it is, after the rotary
encoding, by whoever computes that:

- the mean of the keys, from calibration, is subtracted from each, because softmax does not see what
  all scores of a query share;
- q and k are rotated by the same orthogonal matrix (:func:`spread`), so that no channel of a key is
  much larger than the others (QuaRot's, arXiv:2404.00456);

and the largest and smallest elements of q, :data:`OUTLIERS` of each, are kept in FP16. Keys have
none, because they are the matrix.
"""

import dataclasses

import numpy as np

from golden.algorithms.attention import DecodeAttention, grouped
from golden.algorithms.attention import softmax as float_softmax
from golden.algorithms.kllm.activations import ActivationQuantizer
from golden.algorithms.kllm.kmeans import midpoints
from golden.algorithms.kllm.quantize import (
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
)
from golden.arith.float_multiply import float_multiply
from golden.kllm.clustering_unit import cluster, scaled_midpoints
from golden.kllm.kllm_core import Tables, Vectors, front_end, kllm_core, multiply, tables_of
from golden.kllm.softmax import softmax

BITS = 4
LEVELS = (1 << BITS) - 1
"""The largest integer weight."""
OUTLIERS = 3
"""Number of largest and of smallest weights that are kept in FP16.

If fitted, elements of queries too.
"""
LONGEST = 2048
"""Scores in a row of the accelerator's softmax, which decide how its sum is truncated."""


@dataclasses.dataclass(frozen=True, eq=False)
class Codebooks:
    """How a layer's attention is quantised.

    q, k, v
        ``float16[16]`` each, ascending: centroids of the elements of q, k and v over their scales.
    mean
        Mean of the keys, ``float32[kv head, d]``. None, as in the paper: q and k are not changed,
        and queries have no outliers.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    mean: np.ndarray | None = None

    @property
    def query_outliers(self) -> int:
        """Number of elements of a query that are kept in FP16 at each end."""
        return 0 if self.mean is None else _query_outliers(self.mean.shape[-1])

    def prepare(self, q: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rotary encoded q [head, token, d], k [kv head, token, d] as they are quantised."""
        if self.mean is None:
            return q, k
        return spread(q), spread(k - self.mean[:, None])


def quantised_heads(
    codebooks: Codebooks, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``float32``: q, k and v as attention multiplies them, turned back, keys less their mean."""
    c = codebooks
    made = [
        ActivationQuantizer(codebook, 0, outliers=outliers)(x).dequantize(np.float32)
        for x, codebook, outliers in zip(
            (*c.prepare(q, k), v), (c.q, c.k, c.v), (c.query_outliers, 0, 0), strict=True
        )
    ]
    if c.mean is not None:
        made[:2] = (spread(x) for x in made[:2])  # the rotation is its own inverse
    return made[0], made[1], made[2]


def spread(x: np.ndarray) -> np.ndarray:
    """``float32``: x times an orthogonal matrix along its last axis.

    The Walsh-Hadamard transform of as many neighbours as the largest power of two that divides the
    length: additions and subtractions in float32, so the same for a vector alone or among others.
    """
    x = np.asarray(x, np.float32)
    shape = x.shape
    size, half = shape[-1] & -shape[-1], 1
    while half < size:
        first, second = np.moveaxis(x.reshape(-1, 2, half), 1, 0)
        x = np.stack([first + second, first - second], axis=1)
        half *= 2
    return x.reshape(shape) * np.float32(1 / np.sqrt(size))


def fit_codebook(x: np.ndarray, outliers: int = 0) -> np.ndarray:
    """``float16[16]`` for vectors [head, token, d] of calibration with `outliers` at each end."""
    x = x.astype(np.float16)
    outlier = dynamic_outliers(x, outliers)
    scale = inlier_scale(x, outlier).astype(np.float32)
    return fit_activation_codebook((x / scale[..., None])[~outlier], BITS)


def fit_codebooks(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, fitted: bool) -> Codebooks:
    """For calibration's q [head, token, d], k and v [kv head, token, d]."""
    if not fitted:
        return Codebooks(fit_codebook(q), fit_codebook(k), fit_codebook(v))
    mean = k.mean(axis=1, dtype=np.float64).astype(np.float32)
    q, k = spread(q), spread(k - mean[:, None])
    outliers = _query_outliers(q.shape[-1])
    return Codebooks(fit_codebook(q, outliers), fit_codebook(k), fit_codebook(v), mean)


def _query_outliers(d: int) -> int:
    """At each end of a query of `d` elements, at least one of which is an inlier."""
    return min(OUTLIERS, (d - 1) // 2)


class QuantizedAttention(DecodeAttention):
    """Dense attention over quantised q, k, v and weights.

    bit_exact
        Compute by :func:`golden.kllm.kllm_core.kllm_core` and :func:`golden.kllm.softmax.softmax`,
        as the accelerator does; otherwise in float32, which differs by roundings of scores and
        weights. Slow.
    """

    def __init__(
        self, codebooks: Codebooks, *, bit_exact: bool = False, longest: int = LONGEST
    ) -> None:
        super().__init__()
        self.bit_exact, self._longest = bit_exact, longest
        self._codebooks = codebooks
        self._cache: list[np.ndarray] = []  # indices and scales of k and of v

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.sequence(q[:, None], k[:, None], v[:, None])[:, 0]

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        kv_heads, tokens, d = k.shape
        q, k = self._codebooks.prepare(q, k)
        k_index, k_scale = quantize(k, self._codebooks.k)
        k_scale = float_multiply(k_scale, np.float16(1 / np.sqrt(d)))
        new = [k_index, k_scale, *quantize(v, self._codebooks.v)]
        if self._cache:
            new = [np.concatenate(pair, axis=1) for pair in zip(self._cache, new, strict=True)]
        self._cache = new
        rows = new[1].shape[1]
        before = rows - tokens
        self.rows = rows * kv_heads
        for row in range(before + 1, rows + 1):
            self.traffic.dense(kv_heads * row, d)
            self.traffic.read_codes(kv_heads * row, kv_heads * row, row_bytes(d))
        keep = np.arange(rows) <= np.arange(before, rows)[:, None]
        attend = self._core if self.bit_exact else self._floats
        groups = grouped(q.astype(np.float16), kv_heads)
        y = [
            [attend(head, self._split(query), keep) for query in group]
            for head, group in enumerate(groups)
        ]
        return np.array(y, np.float32).reshape(q.shape)

    def _split(self, q: np.ndarray) -> Vectors:
        """A head's queries ``float16[token, d]``, split and clustered as the core does."""
        c = self._codebooks
        return front_end(q, tables_of(c.q, c.k), c.query_outliers)

    def _floats(self, head: int, q: Vectors, keep: np.ndarray):
        """``float16[token, d]`` of one query head, products and sums in float32."""
        c = self._codebooks
        k, k_scale, v, v_scale = (array[head] for array in self._cache)
        inliers = c.q.astype(np.float32)[q.activation] * q.scale.astype(np.float32)[:, None]
        with_scale = np.where(q.outlier, q.value.astype(np.float32), inliers)
        keys = c.k.astype(np.float32)[k]
        keys *= k_scale.astype(np.float32)[:, None]
        scores = (with_scale @ keys.T).astype(np.float16).astype(np.float32)
        p = half(float_softmax(np.where(keep, scores, -np.inf)))
        w = half(p * v_scale.astype(np.float32))
        inlier = keep & ~ends(w, keep, OUTLIERS)
        scale = np.where(inlier, w, 0).max(axis=1, keepdims=True)
        scale = np.where(scale > 0, scale, np.float32(1))
        # A weight midway between two levels has the lower one.
        level = np.ceil(w * (LEVELS / scale) - np.float32(0.5)).clip(0, LEVELS)
        weight = np.where(inlier, level * (scale / LEVELS), np.where(keep, w, 0))
        return (weight @ c.v.astype(np.float32)[v]).astype(np.float16)

    def _core(self, head: int, q: Vectors, keep: np.ndarray):
        """The same by the accelerator's models."""
        c = self._codebooks
        k, k_scale, v, v_scale = (array[head] for array in self._cache)
        scores, _ = multiply(q, tables_of(c.q, c.k), k.T, k_scale)
        p, _ = softmax(scores, keep, max(self._longest, scores.shape[1]))
        w = float_multiply(p, v_scale)
        ones = np.ones(v.shape[1], np.float16)
        y, _ = kllm_core(w, integer_tables(c.v), v, ones, OUTLIERS, keep=keep, integer=True)
        return y


def row_bytes(d: int) -> int:
    """Bytes of a key or a value in memory: its indices and its scale."""
    return -(-BITS * d // 8) + 2


def quantize(x: np.ndarray, codebook: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices and ``float16`` scales of vectors [..., d] without outliers, as the core's own."""
    x = x.astype(np.float16)
    scale = inlier_scale(x, np.zeros(x.shape, bool))
    middle = scaled_midpoints(midpoints(codebook).astype(np.float16), scale)
    return cluster(x, middle[..., None, :]), scale


def half(x: np.ndarray) -> np.ndarray:
    """``float32`` numbers from 0 to FP16's largest, rounded to FP16.

    NumPy's conversion takes 25 times as long where its results are subnormal.
    """
    small = x < np.float32(2**-14)
    # A float32 from 0.5 to 1 is a multiple of the least subnormal number.
    subnormal = (x + np.float32(0.5)) - np.float32(0.5)
    normal = np.where(small, np.float32(0), x).astype(np.float16).astype(np.float32)
    return np.where(small, subnormal, normal)


def ends(w: np.ndarray, keep: np.ndarray, count: int) -> np.ndarray:
    """``bool[token, rows]``: the `count` largest and smallest of each token's kept weights.

    Ties go to the lower index at both ends, as in Orizuru.
    """
    found = np.zeros(w.shape, bool)
    for sign in (1, -1):
        left = np.where(keep, sign * w, -np.inf)
        for _ in range(count):
            at = left.argmax(axis=1)[:, None]
            np.put_along_axis(found, at, True, axis=1)
            np.put_along_axis(left, at, -np.inf, axis=1)
    return found & keep


def integer_tables(codebook: np.ndarray) -> Tables:
    """The core's tables for integers of weights, times centroids of v.

    Integers count in units of 1 / 15 of their scale, which the products of the table hold.
    """
    products = np.zeros((LEVELS + 1, len(codebook)), np.float16)
    unit = (codebook.astype(np.float64) / LEVELS).astype(np.float16)
    for bit in range(BITS):
        products[bit] = unit * np.float16(1 << bit)
    middle = ((np.arange(LEVELS) + 0.5) / LEVELS).astype(np.float16)
    levels = (np.arange(LEVELS + 1) / LEVELS).astype(np.float16)
    squares = np.square(levels.astype(np.float32)).astype(np.float16)
    return Tables(products, codebook, middle, squares, levels)
