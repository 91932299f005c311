"""Testbench of a lane: steps of columns in, results out. A transaction is a column."""

import dataclasses

import numpy as np

from golden.algorithms.kllm.quantize import dynamic_outliers, inlier_scale, outlier_count
from golden.arith.formats import to_bits
from golden.kllm.clustering_unit import cluster, scaled_midpoints
from golden.kllm.outlier_list import outlier_rows
from golden.kllm.pe_lane import pe_lane
from golden.kllm.reduction import index_products
from golden.kllm.sparse_path import sparse_path
from golden.trace import Trace
from hw.kllm.pe_lane import PeLaneParameters, Result, VectorScale
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.exact_sums import any_number, double_ties, terms_for
from sim.testbenches.kllm.layers import layers_of
from sim.testbenches.strategies import sometimes

RUN = 6  # columns of one product


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """Columns that share vector, table and codebook, as the model accepts them.

    activation, keep, value, outlier
        ``[K]``.
    weight, s_b
        ``[columns, K]`` and ``[columns]``.
    s_a, r
        Scalars, or arrays of no dimension.
    """

    activation: np.ndarray
    keep: np.ndarray
    value: np.ndarray
    outlier: np.ndarray
    weight: np.ndarray
    table: np.ndarray
    codebook: np.ndarray
    s_a: np.float16 | np.ndarray
    r: np.float16 | np.ndarray
    s_b: np.ndarray
    integer: bool

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """``float32[columns]``: the dense and the sparse sum of each."""
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


def outliers_of(p: PeLaneParameters) -> int:
    """At each end of a vector."""
    return min(outlier_count(p.k), (p.k - 1) // 2)


def real_products(
    p: PeLaneParameters, trace: Trace, columns: int
) -> tuple[list[Product], list[str]]:
    """A vector of each layer in turn, by RUN columns of its matrix."""
    count = outliers_of(p)
    layers, notes = layers_of(trace, p.k, RUN, p.activation_bits, p.weight_bits, count)
    products = []
    for number in range(-(-columns // RUN)):
        layer = layers[number % len(layers)]
        x = layer.x[number // len(layers) % len(layer.x)]
        outlier = dynamic_outliers(x, count)
        scale = inlier_scale(x, outlier)
        products.append(
            Product(
                activation=cluster(x, scaled_midpoints(layer.tables.midpoints, scale)),
                keep=~outlier,
                value=np.where(outlier, x, np.float16(0)),
                outlier=outlier,
                weight=layer.weights.index.T[: columns - number * RUN],
                table=layer.tables.products,
                codebook=layer.tables.centroids,
                s_a=scale,
                r=np.float16(1),
                s_b=layer.weights.scale[: columns - number * RUN],
                integer=False,
            )
        )
    return products, notes


def random_products(p: PeLaneParameters, columns: int, rng: np.random.Generator) -> list[Product]:
    """Products of any length, with any number of outliers and any kind of numbers."""
    products, made = [], 0
    while made < columns:
        run = int(min(columns - made, rng.choice([1, 2, RUN])))
        length = int(rng.choice([1, min(p.k, p.segment), p.k, int(rng.integers(1, p.k + 1))]))
        kind = int(rng.integers(0, 4))
        shape = (1 << p.activation_bits, 1 << p.weight_bits)
        share = rng.choice([0, 0.02, 0.2, 1])
        outlier = sometimes(rng, share, length)
        keep = ~outlier & (rng.random(length) < rng.choice([0.5, 1]))
        equal = sometimes(rng, 0.3)  # makes counts reach their maximum
        scales = min(kind, 2) if sometimes(rng, 0.3) else 0  # mostly scales that keep y in range
        activation = rng.integers(0, shape[0], length)
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
            integer=bool(sometimes(rng, 0.3)),
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
    """Up to four outliers that nearly cancel the first column's dense sum: low bits show."""
    outlier = np.arange(len(product.keep)) < rng.integers(1, 5)
    keep = product.keep & ~outlier
    dense, _ = dataclasses.replace(product, keep=keep, outlier=outlier).sums()
    total = np.nan_to_num(-product.s_a.astype(np.float64) * dense[0])
    codebook = product.codebook
    kind = rng.integers(0, 3)
    if kind == 0:  # of all but the lowest bits
        total *= 1 + rng.choice([-1, 1]) * 2.0 ** -int(rng.integers(8, 30))
    elif kind == 1 and total:  # of all rounded, which is a tie, exactly
        rounded = np.float32(total)
        total = float(rounded) + float(np.spacing(rounded)) * rng.choice([-0.5, 0.5, 1.5])
        power = 2.0 ** np.clip(np.frexp(total)[1] - 8, -14, 15)
        codebook = np.full_like(codebook, power)
    centroids = codebook[product.weight[0, outlier]].astype(np.float64)
    value = np.zeros(len(outlier), np.float16)
    value[outlier] = terms_for(np.nan_to_num(centroids, posinf=0, neginf=0), total)
    return dataclasses.replace(product, keep=keep, outlier=outlier, value=value, codebook=codebook)


def with_ties_in_sight(product: Product, rng: np.random.Generator) -> Product:
    """Column scales that bring results into range and as near to a rounding tie as possible."""
    dense, sparse = product.sums()
    columns = np.arange(len(dense))
    tries = np.concatenate([numbers(kind, (512, len(dense)), rng) for kind in (0, 1)])
    total = np.float32(product.s_a) * dense + sparse
    y = total.astype(np.float64) * np.float64(product.r) * tries
    off = np.abs(y / np.spacing(y.astype(np.float16)).astype(np.float64) % 1 - 0.5)
    usual = (np.abs(y) > 2.0**-14) & (np.abs(y) < 65504)
    best = np.where(usual, off, 1).argmin(axis=0)
    return dataclasses.replace(product, s_b=tries[best, columns])


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
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, 2**-24, 65504], np.float16)
    table = product.table.copy()
    table[tuple(rng.integers(0, table.shape))] = rng.choice(special)
    s_a, r = rng.choice(special, 2)
    s_b = rng.choice(special, len(product.s_b))
    product = dataclasses.replace(product, table=table, s_a=s_a, r=r, s_b=s_b)
    if sometimes(rng, 0.5):
        return product
    no_position = np.zeros(len(product.keep), bool)
    value = no_position.astype(np.float16)
    return dataclasses.replace(product, keep=no_position, outlier=no_position, value=value)


def numbers(kind: int, shape, rng: np.random.Generator) -> np.ndarray:
    """FP16: about 1, of any size, subnormal and small, or anything with infinities and NaNs."""
    bits = rng.integers(0, 1 << 16, shape)
    if kind == 0:
        return np.asarray(rng.standard_normal(shape)).astype(np.float16)
    if kind == 1:
        bits = bits & 0xBFFF
    elif kind == 2:
        bits = bits & 0x8FFF
    else:
        bits = np.where(sometimes(rng, 0.97, shape), bits & 0xBFFF, bits | 0x7C00)
    return np.asarray(bits).astype(np.uint16).view(np.float16)


def build(
    p: PeLaneParameters, products: list[Product], rng: np.random.Generator, notes: list[str]
) -> Stimulus:
    """The stimulus of these products, column by column."""
    parts, results, counts = [], [], []
    for product in products:
        rows = outlier_rows(product.value, product.outlier, p.segment, p.entries, p.k)
        steps, columns = len(rows.segment), len(product.weight)
        size = (rows.segment[-1] + 1) * p.segment
        place = (rows.segment[:, None] * p.segment + np.arange(p.segment))[None]
        inside = place < len(product.keep)

        def spread(array, fill, size=size, place=place):
            padded = np.concatenate([array, fill[..., array.shape[-1] : size]], axis=-1)
            return padded[..., place[0]]

        shape = (columns, steps)
        any_index = rng.integers(0, 1 << 16, (columns, size))
        last = np.broadcast_to(np.arange(steps) == steps - 1, shape)
        fields = {
            "activation": np.broadcast_to(
                spread(product.activation, any_index[0] % (1 << p.activation_bits)),
                (*shape, p.segment),
            ),
            "weight": spread(product.weight, any_index % (1 << p.weight_bits)),
            "mask": np.broadcast_to(
                spread(product.keep, np.zeros(size, bool)) & inside[0], (*shape, p.segment)
            ),
            "integer": np.full(shape, product.integer),
            "codebook": np.broadcast_to(to_bits(product.codebook), (*shape, len(product.codebook))),
            "scale": np.where(last, to_bits(product.s_b)[:, None], rng.integers(0, 1 << 16, shape)),
            "advance": np.broadcast_to(rows.advance, shape),
            "last": last,
        }
        stray = rng.integers(0, 1 << 16, rows.valid.shape).astype(np.uint16)
        entries = {
            "valid": rows.valid,
            "position": np.where(rows.valid, rows.position, stray % p.segment),
            "value": np.where(rows.valid, to_bits(rows.value), stray),
        }
        for name, array in entries.items():
            for entry in range(p.entries):
                fields[f"entries[{entry}].{name}"] = np.broadcast_to(array[:, entry], shape)
        parts.append({name: a.reshape(columns * steps, -1) for name, a in fields.items()})
        counts += [steps] * columns
        results.append(product.results())
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    joined = {
        name: array if name in ("activation", "weight", "mask", "codebook") else array[:, 0]
        for name, array in joined.items()
    }
    runs = [len(product.weight) for product in products]
    tables = np.stack([to_bits(product.table).reshape(p.groups, p.macs) for product in products])
    groups = np.repeat(tables, runs, axis=0).reshape(-1, p.macs)
    scales_of_vectors = {
        name: np.repeat([to_bits(getattr(product, name)) for product in products], runs)
        for name in ("s_a", "r")
    }
    y, invalid = (np.concatenate(a) for a in zip(*results, strict=True))
    return Stimulus(
        inputs={
            "i": payload.pack(p.input_layout, joined),
            "products": payload.pack(
                p.products_layout, {f"[{n}]": groups[:, n] for n in range(p.macs)}
            ),
            "vector_scale": payload.pack(VectorScale, scales_of_vectors),
        },
        outputs={"o": payload.pack(Result, {"y": to_bits(y), "invalid": invalid})},
        transaction_of={"o": np.arange(len(y))},
        transactions=len(y),
        cycles=p.cycles(counts),
        notes=notes,
    )
