"""Testbench of a lane that multiplies centroids. A transaction is a column."""

import dataclasses

import numpy as np

from golden.algorithms.kllm.quantize import dynamic_outliers, inlier_scale, outlier_count
from golden.kllm.centroid_lane import centroid_lane, centroid_sum, fixed_codebooks
from golden.kllm.clustering_unit import cluster, scaled_midpoints
from golden.kllm.sparse_path import sparse_path
from golden.trace import Trace
from hw.kllm.centroid_lane import CentroidLaneParameters
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.exact_sums import (
    any_number,
    double_ties,
    numbers,
    scales_near_ties,
)
from sim.testbenches.kllm.lane_columns import (
    SPECIAL,
    LaneProduct,
    cancelling,
    columns_stimulus,
    rows_of,
    step_fields,
)
from sim.testbenches.kllm.layers import layers_of
from sim.testbenches.strategies import sometimes

RUN = 6  # columns of one product
ACTIVATION_BITS = 4  # of the trace's indices


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Product(LaneProduct):
    """Columns that share vector and codebooks; the activations are fixed-point centroids.

    fixed
        ``[2^nW]``: fixed-point centroids of the weights.
    bits
        Width of the fixed-point centroids.
    """

    fixed: np.ndarray
    bits: int

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        weight = self.weight.T
        dense = centroid_sum(self.activation[None], self.fixed[weight], self.bits)
        sparse, _ = sparse_path(self.value[None], weight, self.codebook, self.outlier[None])
        return dense[0], sparse[0]

    def results(self) -> tuple[np.ndarray, np.ndarray]:
        y, invalid = centroid_lane(
            self.activation[None],
            self.weight.T,
            self.value[None],
            self.outlier[None],
            self.fixed,
            self.codebook,
            np.array([self.s_a]),
            np.array([self.r]),
            self.s_b,
            self.bits,
            None if self.kept is None else self.kept[None],
        )
        return y[0], invalid[0]


class CentroidLaneTestbench:
    def default_vectors(self, parameters: CentroidLaneParameters) -> int:
        return 36 if parameters.segment > 16 else 72 if parameters.weight_bits > 2 else 1000

    def stimulus(
        self, parameters: CentroidLaneParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            products = in_parts(parameters, random_products(parameters, vectors, rng), rng)
            return build(parameters, products, rng, [])
        products, notes = real_products(parameters, trace, vectors)
        return build(parameters, products, rng, notes)


testbench = CentroidLaneTestbench()


def in_parts(
    p: CentroidLaneParameters, products: list[Product], rng: np.random.Generator
) -> list[Product]:
    """Some of the products with the sums of the one before added, which has as many columns."""
    chained = products[:1]
    for product in products[1:]:
        columns, before = len(product.s_b), chained[-1]
        if columns <= len(before.s_b) <= p.columns and sometimes(rng, 0.3):
            with np.errstate(all="ignore"):
                product = dataclasses.replace(product, kept=before.total()[:columns])
        chained.append(product)
    return chained


def real_products(
    p: CentroidLaneParameters, trace: Trace, columns: int
) -> tuple[list[Product], list[str]]:
    """A vector of each layer in turn, by RUN columns of its matrix."""
    count = min(outlier_count(p.k), (p.k - 1) // 2)
    layers, notes = layers_of(trace, p.k, RUN, ACTIVATION_BITS, p.weight_bits, count)
    products = []
    for number in range(-(-columns // RUN)):
        layer = layers[number % len(layers)]
        x = layer.x[number // len(layers) % len(layer.x)]
        outlier = dynamic_outliers(x, count)
        scale = inlier_scale(x, outlier)
        index = cluster(x, scaled_midpoints(layer.tables.midpoints, scale))
        made = fixed_codebooks(layer.codebook, layer.weights.codebook, p.bits)
        own = min(RUN, columns - number * RUN)
        products.append(
            Product(
                activation=np.where(outlier, 0, made.activations[index]),
                value=np.where(outlier, x, np.float16(0)),
                outlier=outlier,
                weight=layer.weights.index.T[:own],
                fixed=made.weights,
                codebook=made.sparse_centroids(layer.weights.codebook),
                s_a=scale,
                r=np.float16(1),
                s_b=made.column_scales(layer.weights.scale[:own]),
                bits=p.bits,
            )
        )
    return products, [*notes, "Centroids are integers relative to the largest of their codebook."]


def random_products(
    p: CentroidLaneParameters, columns: int, rng: np.random.Generator
) -> list[Product]:
    """Products of any length, with any number of outliers and any kind of numbers."""
    products, made = [], 0
    while made < columns:
        run = int(min(columns - made, rng.choice([1, 2, RUN])))
        length = int(rng.choice([1, min(p.k, p.segment), p.k, int(rng.integers(1, p.k + 1))]))
        kind = int(rng.integers(0, 4))
        outlier = sometimes(rng, rng.choice([0, 0.02, 0.2, 1]), length)
        scales = min(kind, 2) if sometimes(rng, 0.3) else 0  # mostly scales that keep y in range
        levels = 1 << p.weight_bits
        product = Product(
            activation=np.where(outlier, 0, integers(p.bits, length, rng)),
            value=numbers(kind, length, rng),
            outlier=outlier,
            weight=rng.integers(0, levels, (run, length)),
            fixed=integers(p.bits, levels, rng),
            codebook=numbers(kind, levels, rng),
            s_a=numbers(scales, (), rng),
            r=numbers(scales, (), rng),
            s_b=numbers(kind if scales else 0, run, rng),
            bits=p.bits,
        )
        with np.errstate(all="ignore"):
            if sometimes(rng, 0.4):
                product = with_sums_that_cancel(product, rng)
            if sometimes(rng, 0.7):
                product = with_ties_in_sight(product, rng)
            elif sometimes(rng, 0.5):
                product = with_double_ties(product, rng)
        if sometimes(rng, 0.2):
            product = with_special_numbers(product, rng)
        products.append(product)
        made += run
    return products


def integers(bits: int, shape, rng: np.random.Generator) -> np.ndarray:
    """Centroids: of any size, small, the extremes, or all equal."""
    high = 1 << bits - 1
    kind = rng.integers(0, 5)
    if kind == 0:
        return rng.choice([-high, high - 1], shape)
    if kind == 1:
        return np.full(shape, rng.choice([-high, high - 1, 1]))
    limit = max(1, high >> int(rng.integers(0, bits))) if kind == 2 else high
    return rng.integers(-limit, limit, shape)


def with_sums_that_cancel(product: Product, rng: np.random.Generator) -> Product:
    """Up to four outliers whose sum is anything, or nearly cancels the first column's dense sum."""
    outlier = np.arange(len(product.outlier)) < rng.integers(1, 5)
    activation = np.where(outlier, 0, product.activation)
    dense, _ = dataclasses.replace(product, activation=activation, outlier=outlier).sums()
    total = np.nan_to_num(-product.s_a.astype(np.float64) * dense[0])
    kind = int(rng.integers(0, 4))
    if kind == 2:
        total = any_number(-44, 32, rng)
    fields = cancelling(product, outlier, total, kind, rng)
    return dataclasses.replace(product, activation=activation, **fields)


def with_ties_in_sight(product: Product, rng: np.random.Generator) -> Product:
    """Column scales that bring results into range and as near to a rounding tie as possible."""
    dense, sparse = product.sums()
    total = np.float32(product.s_a) * dense + sparse
    return dataclasses.replace(product, s_b=scales_near_ties(total, product.r, rng))


def with_double_ties(product: Product, rng: np.random.Generator) -> Product:
    """Products of 1 whose sum is a factor of a tie of FP32 next to a tie of FP16."""
    found = double_ties()
    found = found[found[:, 0] <= len(product.outlier)]
    if not len(found):
        return product
    v, a, _ = found[rng.integers(0, len(found))]
    b = found[(found[:, 0] == v) & (found[:, 1] == a), 2]
    powers = 2.0 ** rng.integers(-6, 7, 3) * rng.choice([-1, 1], 3)
    no_position = np.zeros(len(product.outlier), bool)
    sign = rng.choice([-1, 1])
    return dataclasses.replace(
        product,
        activation=np.where(np.arange(len(no_position)) < v, sign, 0),
        fixed=np.full_like(product.fixed, -1),
        outlier=no_position,
        value=no_position.astype(np.float16),
        s_a=np.float16(powers[0]),
        r=np.float16(a / 1024 * powers[1]),
        s_b=(rng.choice(b, len(product.s_b)) / 1024 * powers[2]).astype(np.float16),
    )


def with_special_numbers(product: Product, rng: np.random.Generator) -> Product:
    """Special scales; in half of the products no position counts."""
    s_a, r = rng.choice(SPECIAL, 2)
    s_b = rng.choice(SPECIAL, len(product.s_b))
    product = dataclasses.replace(product, s_a=s_a, r=r, s_b=s_b)
    if sometimes(rng, 0.5):
        return product
    nothing = np.zeros(len(product.outlier), np.int64)
    return dataclasses.replace(
        product,
        activation=nothing,
        outlier=nothing.astype(bool),
        value=nothing.astype(np.float16),
    )


def build(
    p: CentroidLaneParameters, products: list[Product], rng: np.random.Generator, notes: list[str]
) -> Stimulus:
    """The stimulus of these products, column by column."""
    parts, counts = [], []
    for product in products:
        rows = rows_of(p, product)
        steps, columns = len(rows.segment), len(product.weight)
        place = rows.segment[:, None] * p.segment + np.arange(p.segment)
        beyond = (rows.segment[-1] + 1) * p.segment - len(product.outlier)
        stray = rng.integers(0, 1 << p.weight_bits, (columns, beyond))
        weight = np.concatenate([product.weight, stray], axis=1)[:, place]
        activation = np.pad(product.activation, (0, beyond))[place]
        shape = (columns, steps)
        fields = {
            # A step that does not advance is not summed, whatever it holds.
            "activation": np.broadcast_to(activation, (*shape, p.segment)),
            "weight": weight,
            "fixed": np.broadcast_to(product.fixed, (*shape, len(product.fixed))),
        }
        parts.append(step_fields(p, product, rows, rng) | fields)
        counts += [steps] * columns
    arrays = "activation", "weight", "fixed", "codebook"
    return columns_stimulus(p, products, parts, arrays, cycles=p.cycles(counts), notes=notes)
