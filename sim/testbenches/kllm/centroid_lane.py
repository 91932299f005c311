"""Testbench of a lane that multiplies centroids. A transaction is a column."""

import dataclasses

import numpy as np

from golden.algorithms.kllm.quantize import dynamic_outliers, inlier_scale, outlier_count
from golden.arith.formats import to_bits
from golden.kllm.centroid_lane import centroid_lane, centroid_sum, fixed_codebooks
from golden.kllm.clustering_unit import cluster, scaled_midpoints
from golden.kllm.column_scale import column_sum
from golden.kllm.outlier_list import outlier_rows
from golden.kllm.sparse_path import sparse_path
from golden.trace import Trace
from hw.kllm.centroid_lane import CentroidLaneParameters
from hw.kllm.pe_lane import ColumnVector, Result
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.exact_sums import (
    any_number,
    double_ties,
    numbers,
    outliers_of_sum,
    scales_near_ties,
)
from sim.testbenches.kllm.layers import layers_of
from sim.testbenches.strategies import sometimes

RUN = 6  # columns of one product
ACTIVATION_BITS = 4  # of the trace's indices


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """Columns that share vector and codebooks, as the model accepts them.

    activation, value, outlier
        ``[K]``; the activations are fixed-point centroids of `bits` bits.
    weight, s_b
        ``[columns, K]`` and ``[columns]``.
    fixed, codebook
        ``[2^nW]``, of the weights.
    s_a, r
        Scalars, or arrays of no dimension.
    kept
        ``float32[columns]``: sums of the product before, or None.
    """

    activation: np.ndarray
    value: np.ndarray
    outlier: np.ndarray
    weight: np.ndarray
    fixed: np.ndarray
    codebook: np.ndarray
    s_a: np.float16 | np.ndarray
    r: np.float16 | np.ndarray
    s_b: np.ndarray
    bits: int
    kept: np.ndarray | None = None

    def total(self) -> np.ndarray:
        """``float32[columns]``: sums that are kept for the next product."""
        return column_sum(*self.sums(), np.asarray(self.s_a), self.kept)

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """``float32[columns]``: the dense and the sparse sum of each."""
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
    codebook = product.codebook
    kind = rng.integers(0, 4)
    if kind == 0:  # all but the lowest bits
        total *= 1 + rng.choice([-1, 1]) * 2.0 ** -int(rng.integers(8, 30))
    elif kind == 1 and total:  # a tie exactly
        rounded = np.float32(total)
        total = float(rounded) + float(np.spacing(rounded)) * rng.choice([-0.5, 0.5, 1.5])
        power = 2.0 ** np.clip(np.frexp(total)[1] - 8, -14, 15)
        codebook = np.full_like(codebook, power)
    elif kind == 2:
        total = any_number(-44, 32, rng)
    value = outliers_of_sum(codebook[product.weight[0]], outlier, total)
    return dataclasses.replace(
        product, activation=activation, outlier=outlier, value=value, codebook=codebook
    )


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
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, 2**-24, 65504], np.float16)
    s_a, r = rng.choice(special, 2)
    s_b = rng.choice(special, len(product.s_b))
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
    parts, results, counts = [], [], []
    for product in products:
        rows = outlier_rows(product.value, product.outlier, p.segment, p.entries, p.k)
        steps, columns = len(rows.segment), len(product.weight)
        size = (rows.segment[-1] + 1) * p.segment
        place = rows.segment[:, None] * p.segment + np.arange(p.segment)
        beyond = size - len(product.outlier)
        stray = rng.integers(0, 1 << p.weight_bits, (columns, beyond))
        weight = np.concatenate([product.weight, stray], axis=1)[:, place]
        activation = np.pad(product.activation, (0, beyond))[place]
        shape = (columns, steps)
        last = np.broadcast_to(np.arange(steps) == steps - 1, shape)
        any_bits = rng.integers(0, 1 << 16, (2, *rows.valid.shape)).astype(np.uint16)
        fields = {
            # A step that does not advance is not summed, whatever it holds.
            "activation": np.broadcast_to(activation, (*shape, p.segment)),
            "weight": weight,
            "fixed": np.broadcast_to(product.fixed, (*shape, len(product.fixed))),
            "codebook": np.broadcast_to(to_bits(product.codebook), (*shape, len(product.codebook))),
            "scale": np.where(last, to_bits(product.s_b)[:, None], rng.integers(0, 1 << 16, shape)),
            "advance": np.broadcast_to(rows.advance, shape),
            "last": last,
        }
        entries = {
            "valid": rows.valid,
            "position": np.where(rows.valid, rows.position, any_bits[0] % p.segment),
            "value": np.where(rows.valid, to_bits(rows.value), any_bits[1]),
        }
        for name, array in entries.items():
            for entry in range(p.entries):
                fields[f"entries[{entry}].{name}"] = np.broadcast_to(array[:, entry], shape)
        parts.append({name: a.reshape(columns * steps, -1) for name, a in fields.items()})
        counts += [steps] * columns
        results.append(product.results())
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    joined = {
        name: array if name in ("activation", "weight", "fixed", "codebook") else array[:, 0]
        for name, array in joined.items()
    }
    runs = [len(product.weight) for product in products]
    of_vectors = {
        name: np.repeat([to_bits(getattr(product, name)) for product in products], runs)
        for name in ("s_a", "r")
    }
    of_vectors["add"] = np.repeat([product.kept is not None for product in products], runs)
    of_vectors["first"] = np.concatenate([np.arange(run) == 0 for run in runs])
    y, invalid = (np.concatenate(a) for a in zip(*results, strict=True))
    return Stimulus(
        inputs={
            "i": payload.pack(p.input_layout, joined),
            "vector_scale": payload.pack(ColumnVector, of_vectors),
        },
        outputs={"o": payload.pack(Result, {"y": to_bits(y), "invalid": invalid})},
        transaction_of={"o": np.arange(len(y))},
        transactions=len(y),
        cycles=p.cycles(counts),
        notes=notes,
    )
