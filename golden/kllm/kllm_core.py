"""Bit-exact model of the accelerator, for any number of vectors and columns (KLLM, Fig. 5).

It is composed of the models of its parts: :mod:`golden.kllm.outlier_split`,
:mod:`golden.kllm.clustering_unit`, :mod:`golden.kllm.rms_factor` and :mod:`golden.kllm.pe_lane`.
"""

import dataclasses

import numpy as np

from golden.algorithms.kllm.kmeans import midpoints
from golden.algorithms.kllm.matvec import product_table
from golden.arith.float_multiply import float_multiply
from golden.kllm.centroid_lane import FixedCodebooks, centroid_sum, fixed_codebooks
from golden.kllm.clustering_unit import cluster, scaled_midpoints
from golden.kllm.column_scale import column_result, column_sum
from golden.kllm.element_function import element_function
from golden.kllm.outlier_split import outlier_split
from golden.kllm.pe_lane import lane_sums
from golden.kllm.rms_factor import rms_factor
from golden.kllm.sparse_path import sparse_path


@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """Tables that are loaded for a product.

    products
        ``float16[2^nA, 2^nW]``.
    centroids
        ``float16[2^nW]`` of the weights.
    midpoints
        ``float16[2^nA - 1]`` between the activations' centroids, ascending.
    squares, activations
        ``float16[2^nA]``: squares of the activations' centroids, and the centroids.
    fixed, fixed_bits
        For lanes that multiply: both codebooks in fixed point, and the bits of a centroid. Then
        `centroids` and the columns' scales are :class:`FixedCodebooks`'.
    """

    products: np.ndarray
    centroids: np.ndarray
    midpoints: np.ndarray
    squares: np.ndarray
    activations: np.ndarray
    fixed: FixedCodebooks | None = None
    fixed_bits: int = 0


def tables_of(codebook_a: np.ndarray, codebook_b: np.ndarray) -> Tables:
    """The tables of two codebooks, ``float16``; the activations' is ascending."""
    products = product_table(codebook_a, codebook_b, np.float16)
    shape = (len(codebook_a), len(codebook_b))
    middle = midpoints(codebook_a).astype(np.float16)
    squares = np.square(codebook_a.astype(np.float32)).astype(np.float16)
    return Tables(products.reshape(shape), codebook_b, middle, squares, codebook_a)


def fixed_tables(
    codebook_a: np.ndarray, codebook_b: np.ndarray, bits: int
) -> tuple[Tables, FixedCodebooks]:
    """The tables of two codebooks for lanes that multiply, and what scales their columns."""
    made = fixed_codebooks(codebook_a, codebook_b, bits)
    tables = tables_of(codebook_a, made.sparse_centroids(codebook_b))
    return dataclasses.replace(tables, fixed=made, fixed_bits=bits), made


@dataclasses.dataclass(frozen=True)
class Norm:
    """RMSNorm of the vectors: 1 / K and eps, ``float32``."""

    inverse_k: np.float32
    eps: np.float32


@dataclasses.dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors after splitting and clustering.

    activation
        Indices ``[T, K]``.
    keep, outlier
        ``bool[T, K]``: inliers, whose indices are counted, and outliers.
    value
        ``float16[T, K]``: the outliers' values, 0 elsewhere.
    scale
        ``float16[T]``.
    pairs
        The outliers in order, as :func:`golden.kllm.outlier_split.outlier_split` returns them.
    """

    activation: np.ndarray
    keep: np.ndarray
    outlier: np.ndarray
    value: np.ndarray
    scale: np.ndarray
    pairs: dict[str, np.ndarray]


def front_end(
    x: np.ndarray, tables: Tables, outliers: int, keep: np.ndarray | None = None
) -> Vectors:
    """Split and cluster vectors ``float16[T, K]``; `keep` masks their values, by default all."""
    keep = np.ones(x.shape, bool) if keep is None else keep
    pairs, outlier, scale = outlier_split(x, keep, outliers)
    index = cluster(x, scaled_midpoints(tables.midpoints, scale)[:, None])
    value = np.where(outlier, x, np.float16(0))
    return Vectors(index, keep & ~outlier, outlier, value, scale, pairs)


def kllm_core(
    x: np.ndarray,
    tables: Tables,
    weight: np.ndarray,
    scale: np.ndarray,
    outliers: int,
    *,
    keep: np.ndarray | None = None,
    integer: bool = False,
    signed: bool = False,
    norm: Norm | None = None,
    function: int | None = None,
    rows: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """``float16[T, N]``: the products of vectors with a matrix, and ``bool[T, N]`` invalid.

    x, keep
        ``float16[T, K]``, ``bool[T, K]``: the vectors, and a mask of values, all by default.
    weight, scale
        Indices ``[K, N]``, ``float16[N]``.
    outliers
        At each end of a vector.
    integer
        Whether activation indices are integers; ``tables.products[p]`` then holds 2^p times the
        weights' centroids.
    signed
        With `integer`: an index i is the integer i - 2^(nA - 1), whose top bit counts negative, as
        the table's line of it must.
    norm
        Whether to divide by the root of the vectors' mean square first.
    function
        Function that is applied to the vectors first, a key of
        :data:`golden.kllm.element_function.FUNCTIONS`. Every vector then has a product table of its
        own, so that this is slow.
    rows
        Most rows of the matrix in a product, by default all. Otherwise each of :func:`parts_of` the
        vectors has its outliers, `outliers` for every part, and its scale, and there is no `norm`.
    """
    keep = np.ones(x.shape, bool) if keep is None else keep
    parts = parts_of(x.shape[1], x.shape[1] if rows is None else rows)
    if norm is not None and len(parts) > 1:
        raise ValueError("a vector in parts cannot be normalised")
    kept = None
    for part in parts[:-1]:
        v = front_end(x[:, part], tables, outliers, keep[:, part])
        kept = sums(
            v,
            tables,
            weight[part],
            integer=integer,
            signed=signed,
            function=function,
            kept=kept,
        )
    last = parts[-1]
    v = front_end(x[:, last], tables, outliers, keep[:, last])
    return multiply(
        v,
        tables,
        weight[last],
        scale,
        integer=integer,
        signed=signed,
        norm=norm,
        function=function,
        kept=kept,
    )


def parts_of(length: int, most: int) -> list[slice]:
    """Parts of at most `most` of a vector's values, of about equal size, all but the last of full
    beats of 16."""
    count = -(-length // most)
    size = min(most, -(-length // count // 16) * 16) if count > 1 else length
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def multiply(
    v: Vectors,
    tables: Tables,
    weight: np.ndarray,
    scale: np.ndarray,
    *,
    integer: bool = False,
    signed: bool = False,
    norm: Norm | None = None,
    function: int | None = None,
    kept: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Results of :func:`kllm_core` for vectors that :func:`front_end` has split and clustered.

    The vectors of several matrices with one codebook of activations are split once. ``kept`` are
    the :func:`sums` of the rows of the matrix before.
    """
    r = np.ones(len(v.scale), np.float16)
    if norm is not None:
        constants = (norm.inverse_k, norm.eps)
        r = rms_factor(v.activation, v.keep, v.pairs, tables.squares, v.scale, *constants)
    total = sums(v, tables, weight, integer=integer, signed=signed, function=function, kept=kept)
    y = column_result(total, r[:, None], scale)
    return y, np.isnan(y)


def sums(
    v: Vectors,
    tables: Tables,
    weight: np.ndarray,
    *,
    integer: bool = False,
    signed: bool = False,
    function: int | None = None,
    kept: np.ndarray | None = None,
) -> np.ndarray:
    """``float32[T, N]``: what a partial product keeps, with the sums ``kept`` before it."""
    if signed:
        top = len(tables.products) >> 1
        v = dataclasses.replace(v, activation=v.activation ^ v.activation.dtype.type(top))
    if function is None:
        return _sums(v, tables, weight, integer, kept)
    parts = []
    for token in range(len(v.scale)):
        one = slice(token, token + 1)
        rebuilt, replaced = replace(v, one, tables, function)
        before = None if kept is None else kept[one]
        parts.append(_sums(replaced, rebuilt, weight, integer, before))
    return np.concatenate(parts)


def replace(v: Vectors, token: slice, tables: Tables, function: int) -> tuple[Tables, Vectors]:
    """Tables and vector for f of one vector: f(s_A c) in the products, f of the outliers."""
    scaled = float_multiply(tables.activations, v.scale[token])
    with np.errstate(over="ignore"):
        centroids = element_function(scaled, function)
        value = np.where(v.outlier[token], element_function(v.value[token], function), 0)
    products = float_multiply(centroids[:, None], tables.centroids)
    scale = np.where(np.isnan(v.scale[token]), v.scale[token], np.float16(1))
    fields = {"activation": v.activation, "keep": v.keep, "outlier": v.outlier}
    one = {name: array[token] for name, array in fields.items()}
    replaced = Vectors(**one, value=value.astype(np.float16), scale=scale, pairs=v.pairs)
    return dataclasses.replace(tables, products=products), replaced


def _sums(v: Vectors, tables: Tables, weight, integer, kept):
    if tables.fixed is not None:
        a = np.where(v.keep, tables.fixed.activations[v.activation], 0)
        s = centroid_sum(a, tables.fixed.weights[weight], tables.fixed_bits)
        rows = v.outlier.any(axis=0)  # the others add nothing to any vector
        o, _ = sparse_path(v.value[:, rows], weight[rows], tables.centroids, v.outlier[:, rows])
        return column_sum(s, o, v.scale[:, None], kept)
    return lane_sums(
        v.activation,
        weight,
        v.keep,
        v.value,
        v.outlier,
        tables.products,
        tables.centroids,
        v.scale,
        integer,
        kept,
    )
