"""Testbench of a lane: steps of columns in, results out. A transaction is a column."""

import dataclasses

import numpy as np

from golden.algorithms.kllm.quantize import dynamic_outliers, inlier_scale, outlier_count
from golden.arith.formats import to_bits
from golden.kllm.clustering_unit import cluster, scaled_midpoints
from golden.kllm.pe_lane import pe_lane
from golden.kllm.reduction import index_products
from golden.kllm.sparse_path import sparse_path
from golden.trace import Trace
from hw.kllm.pe_lane import PeLaneParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.exact_sums import (
    any_number,
    double_ties,
    numbers,
    scales_near_ties,
    terms_for,
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


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Product(LaneProduct):
    """Columns that share vector, table and codebook, as the model accepts them.

    keep
        ``[K]``: values that are counted.
    groups
        Groups of bins that have counts.
    """

    keep: np.ndarray
    table: np.ndarray
    integer: bool
    groups: int

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        weight = self.weight.T
        keep, outlier = self.keep[None], self.outlier[None]
        dense, _ = index_products(self.activation[None], weight, self.table, keep, self.integer)
        sparse, _ = sparse_path(self.value[None], weight, self.codebook, outlier)
        return dense[0], sparse[0]

    def results(self) -> tuple[np.ndarray, np.ndarray]:
        y, invalid = pe_lane(
            self.activation[None],
            self.weight.T,
            self.keep[None],
            self.value[None],
            self.outlier[None],
            self.table,
            self.codebook,
            np.array([self.s_a]),
            np.array([self.r]),
            self.s_b,
            self.integer,
            None if self.kept is None else self.kept[None],
        )
        return y[0], invalid[0]


class PeLaneTestbench:
    def default_vectors(self, parameters: PeLaneParameters) -> int:
        return (
            36 if parameters.segment > 16 else 72 if parameters.column_counter.bins > 16 else 1000
        )

    def stimulus(
        self, parameters: PeLaneParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            return build(parameters, random_products(parameters, vectors, rng), rng, [])
        products, notes = real_products(parameters, trace, vectors)
        return build(parameters, products, rng, notes)


testbench = PeLaneTestbench()


def outliers_of(p: PeLaneParameters, length: int) -> int:
    """At each end of a vector."""
    return min(outlier_count(p.k), (length - 1) // 2)


def groups_of(p: PeLaneParameters, lines: int) -> int:
    """Groups of bins that have counts if activations index the first `lines` of the table."""
    return -(-(lines << p.weight_bits) // p.macs)


def real_products(
    p: PeLaneParameters, trace: Trace, columns: int
) -> tuple[list[Product], list[str]]:
    """A vector of each layer in turn, by RUN columns of its matrix; every other one in two parts.

    A vector's parts are its halves, each with separate outliers and scale.
    """
    run = min(RUN, p.columns)
    layers, notes = layers_of(
        trace, p.k, run, p.activation_bits, p.weight_bits, outliers_of(p, p.k)
    )
    products: list[Product] = []
    made = number = 0
    while made < columns:
        layer = layers[number % len(layers)]
        x = layer.x[number // len(layers) % len(layer.x)]
        parts = [slice(None)]
        if number % 2 and p.k > 1:
            parts = [slice(p.k // 2), slice(p.k // 2, None)]
        kept = None
        for part in parts:
            half, some = x[part], slice(min(run, columns - made))
            outlier = dynamic_outliers(half, outliers_of(p, len(half)))
            scale = inlier_scale(half, outlier)
            product = Product(
                activation=cluster(half, scaled_midpoints(layer.tables.midpoints, scale)),
                keep=~outlier,
                value=np.where(outlier, half, np.float16(0)),
                outlier=outlier,
                weight=layer.weights.index[part].T[some],
                table=layer.tables.products,
                codebook=layer.tables.centroids,
                s_a=scale,
                r=np.float16(1),
                s_b=layer.weights.scale[some],
                integer=False,
                groups=p.groups,
                kept=None if kept is None else kept[some],
            )
            kept = product.total()
            products.append(product)
            made += len(product.weight)
            if made == columns:
                break
        number += 1
    notes.append("Every other vector is multiplied in two parts, whose sums are added.")
    return products, notes


def random_products(p: PeLaneParameters, columns: int, rng: np.random.Generator) -> list[Product]:
    """Products of any length, with any number of outliers and any kind of numbers.

    A third add sums of those before. Half use fewer lines of the table, or are of integers.
    """
    products, made = [], 0
    sums = np.zeros(p.columns, np.float32)  # kept of each column
    written = 0  # columns with a sum
    while made < columns:
        run = int(min(columns - made, rng.choice([1, 2, RUN])))
        kept = None
        if written and sometimes(rng, 0.35):
            run = min(run, written)
            kept = sums[:run].copy()
        length = int(rng.choice([1, min(p.k, p.segment), p.k, int(rng.integers(1, p.k + 1))]))
        kind = int(rng.integers(0, 4))
        shape = (1 << p.activation_bits, 1 << p.weight_bits)
        share = rng.choice([0, 0.02, 0.2, 1])
        outlier = sometimes(rng, share, length)
        keep = ~outlier & (rng.random(length) < rng.choice([0.5, 1]))
        equal = sometimes(rng, 0.3)  # makes counts reach their maximum
        scales = min(kind, 2) if sometimes(rng, 0.3) else 0  # mostly scales that keep y in range
        lines = int(rng.integers(1, shape[0] + 1)) if sometimes(rng, 0.3) else shape[0]
        integer = bool(sometimes(rng, 0.3))
        activation = rng.integers(0, shape[0] if integer else lines, length)
        weight = rng.integers(0, shape[1], (run, length))
        if equal:
            activation[:] = activation[0]
            weight[:] = weight[:, :1]
        product = Product(
            activation=activation,
            keep=keep,
            value=numbers(kind, length, rng),
            outlier=outlier,
            weight=weight,
            table=numbers(kind, shape, rng),
            codebook=numbers(kind, shape[1], rng),
            s_a=numbers(scales, (), rng),
            r=numbers(scales, (), rng),
            s_b=numbers(kind if scales else 0, run, rng),
            integer=integer,
            groups=groups_of(p, p.activation_bits if integer else lines),
            kept=kept,
        )
        with np.errstate(all="ignore"):
            if sometimes(rng, 0.5):
                product = with_terms_that_cancel(product, rng)
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
        sums[np.arange(run) % p.columns] = product.total()
        written = max(written, min(run, p.columns))
    return products


def with_terms_that_cancel(product: Product, rng: np.random.Generator) -> Product:
    """The first column's sums have their leading ones at any bit position."""
    table, value, codebook = product.table.copy(), product.value.copy(), product.codebook
    weight = product.weight[0].astype(np.int64)
    if sometimes(rng, 0.5):
        codebook = np.array([any_number(-14, 15, rng) for _ in codebook]).astype(np.float16)
    if not product.integer:
        index = product.activation.astype(np.int64) * table.shape[1] + weight
        counts = np.bincount(index[product.keep], minlength=table.size)
        bins = rng.permutation(np.flatnonzero(counts))
        rest = table.ravel()[bins[3:]].astype(np.float64) @ counts[bins[3:]]
        flat = table.reshape(-1)
        flat[bins[:3]] = terms_for(counts[bins[:3]], any_number(-24, 20, rng) - rest)
    centroids = codebook[weight].astype(np.float64)
    places = rng.permutation(np.flatnonzero(product.outlier & np.isfinite(centroids)))
    rest = value[places[3:]].astype(np.float64) @ centroids[places[3:]]
    value[places[:3]] = terms_for(centroids[places[:3]], any_number(-44, 32, rng) - rest)
    return dataclasses.replace(product, table=table, value=value, codebook=codebook)


def with_sums_that_cancel(product: Product, rng: np.random.Generator) -> Product:
    """Up to four outliers that nearly cancel the first column's other sums: low bits show."""
    outlier = np.arange(len(product.keep)) < rng.integers(1, 5)
    keep = product.keep & ~outlier
    dense, _ = dataclasses.replace(product, keep=keep, outlier=outlier).sums()
    total = -product.s_a.astype(np.float64) * dense[0]
    total = np.nan_to_num(total if product.kept is None else total - product.kept[0])
    fields = cancelling(product, outlier, total, int(rng.integers(0, 3)), rng)
    return dataclasses.replace(product, keep=keep, **fields)


def with_ties_in_sight(product: Product, rng: np.random.Generator) -> Product:
    """Column scales that bring results into range and as near to a rounding tie as possible."""
    return dataclasses.replace(product, s_b=scales_near_ties(product.total(), product.r, rng))


def with_double_ties(product: Product, rng: np.random.Generator) -> Product:
    """Counts of equal products whose sum is a tie of FP32 next to a tie of FP16."""
    found = double_ties()
    v, a, b = found[rng.choice(np.flatnonzero(found[:, 0] == rng.choice([9, 11, 13, 15, 25, 43])))]
    b = found[(found[:, 0] == v) & (found[:, 1] == a), 2]
    powers = 2.0 ** rng.integers(-6, 7, 4) * rng.choice([-1, 1], 4)
    columns = len(product.s_b)
    no_position = np.zeros(len(product.keep), bool)
    one = no_position.copy()
    one[rng.integers(0, len(one))] = True
    return dataclasses.replace(
        product,
        keep=one,
        outlier=no_position,
        value=no_position.astype(np.float16),
        activation=np.ones_like(product.activation) if product.integer else product.activation,
        table=np.full_like(product.table, v * powers[0]),
        s_a=np.float16(powers[1]),
        r=np.float16(a / 1024 * powers[2]),
        s_b=(rng.choice(b, columns) / 1024 * powers[3]).astype(np.float16),
    )


def with_special_numbers(product: Product, rng: np.random.Generator) -> Product:
    """Special scales and one special product of centroids; in half of them no position is kept."""
    table = product.table.copy()
    table[tuple(rng.integers(0, table.shape))] = rng.choice(SPECIAL)
    s_a, r = rng.choice(SPECIAL, 2)
    s_b = rng.choice(SPECIAL, len(product.s_b))
    product = dataclasses.replace(product, table=table, s_a=s_a, r=r, s_b=s_b)
    if sometimes(rng, 0.5):
        return product
    no_position = np.zeros(len(product.keep), bool)
    value = no_position.astype(np.float16)
    return dataclasses.replace(product, keep=no_position, outlier=no_position, value=value)


def build(
    p: PeLaneParameters, products: list[Product], rng: np.random.Generator, notes: list[str]
) -> Stimulus:
    """The stimulus of these products, column by column."""
    parts, counts, tables, groups = [], [], [], []
    for product in products:
        rows = rows_of(p, product)
        steps, columns = len(rows.segment), len(product.weight)
        size = (rows.segment[-1] + 1) * p.segment
        place = rows.segment[:, None] * p.segment + np.arange(p.segment)
        inside = place < len(product.keep)

        def spread(array, fill, size=size, place=place):
            padded = np.concatenate([array, fill[..., array.shape[-1] : size]], axis=-1)
            return padded[..., place]

        shape = (columns, steps)
        any_index = rng.integers(0, 1 << 16, (columns, size))
        activation = spread(product.activation, any_index[0] % (1 << p.activation_bits))
        mask = spread(product.keep, np.zeros(size, bool)) & inside
        common = step_fields(p, product, rows, rng)
        any_groups = rng.integers(0, p.groups + 1, shape)
        fields = {
            "activation": np.broadcast_to(activation, (*shape, p.segment)),
            "weight": spread(product.weight, any_index % (1 << p.weight_bits)),
            "mask": np.broadcast_to(mask, (*shape, p.segment)),
            "integer": np.full(shape, product.integer),
            "groups": np.where(common["last"], product.groups, any_groups),
        }
        parts.append(common | fields)
        counts += [steps] * columns
        groups += [product.groups] * columns
        lines = to_bits(product.table).reshape(p.groups, p.macs)[: product.groups]
        tables.append(np.tile(lines, (columns, 1)))
    lines = np.concatenate(tables)
    return columns_stimulus(
        *(p, products, parts, ("activation", "weight", "mask", "codebook")),
        inputs={
            "products": payload.pack(
                p.products_layout, {f"[{n}]": lines[:, n] for n in range(p.macs)}
            )
        },
        cycles=p.cycles(counts, groups),
        notes=notes,
    )
