"""Testbench of the accelerator: tables, vectors and a memory of weights in, results out.

A transaction is a product of a vector and a matrix.
"""

import dataclasses
import functools

import numpy as np

from golden.kllm.centroid_lane import FixedCodebooks
from golden.kllm.element_function import SILU
from golden.kllm.kllm_core import Norm, Tables, fixed_tables, tables_of
from golden.trace import Trace
from hw.kllm.core.core_parameters import BEAT
from hw.kllm.kllm_core import KllmCoreParameters
from sim.core.stimulus import Stimulus
from sim.testbenches.attention.vector_path import joined, of_units
from sim.testbenches.kllm.core.products import Matrices, Product, results_of_all, stimulus_of
from sim.testbenches.kllm.exact_sums import numbers
from sim.testbenches.kllm.layers import layers_of
from sim.testbenches.strategies import sometimes


class KllmCoreTestbench:
    def default_vectors(self, parameters: KllmCoreParameters) -> int:
        return 8 if parameters.k <= 64 else 4

    def stimulus(
        self, parameters: KllmCoreParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        notes: list[str] = []
        if trace is None:
            products = random_products(parameters, vectors, rng)
        else:
            products, notes = real_products(parameters, trace, vectors)
        stimulus = build(parameters, fit_memory(parameters, products), rng, notes)
        units = of_units(parameters.vector_path, trace, vectors, rng)
        return functools.reduce(joined, units, stimulus)


testbench = KllmCoreTestbench()


def real_products(
    p: KllmCoreParameters, trace: Trace, count: int, columns: int | None = None
) -> tuple[list[Product], list[str]]:
    """Vectors of each layer in turn by their matrix of `columns` columns, a dozen if not given.

    The first vector is stored. The second one's results are scores that weigh the third, if there
    is a third and they fit a vector and a row of the softmax.
    """
    columns = columns or min(p.n, 12)
    scored = count > 2 and columns <= min(p.scores, p.k)
    layers, notes = layers_of(trace, p.k, columns, p.activation_bits, p.weight_bits, p.outliers)
    products: list[Product] = []
    for number in range(count):
        # Two vectors by each matrix.
        layer = layers[number // 2 % len(layers)]
        at = number // (2 * len(layers)) * 2 + number % 2
        # In every four, the second has the tables of the first, the third is normalised, and the
        # last has SiLU applied to it. In every second four, the first two are parts of one
        # product, and the third is a batch.
        turn, several = number % 4, number // 4 % 2 == 1
        vectors = min(p.vectors, 3) if several and turn == 2 else 1
        tables, scale = layer.tables, layer.weights.scale
        if p.centroid_bits:
            codebooks = (layer.codebook, layer.weights.codebook)
            tables, made = fixed_tables(*codebooks, p.centroid_bits)
            scale = made.column_scales(scale)
        parts = several and number - turn + 1 < count
        products.append(
            Product(
                layer.x[(at + np.arange(vectors)) % len(layer.x)],
                np.ones((vectors, p.k), bool),
                tables,
                turn != 1,
                layer.weights.index,
                scale,
                p.outliers,
                norm=Norm(np.float32(1 / p.k), np.float32(1e-5)) if turn == 2 else None,
                function=SILU if turn == 3 and not p.centroid_bits else None,
                partial=parts and turn == 0,
                add=parts and turn == 1,
                store=number == 0,
                softmax=scored and number == 1,
            )
        )
    if scored:
        products[2] = weighted(products[2], products[2].x[:, :columns])
    return products, notes


def random_products(p: KllmCoreParameters, count: int, rng: np.random.Generator) -> list[Product]:
    """Batches of vectors of every length and kind, small matrices, integers, matrices in parts.

    Vectors are stored, results are scores and weigh later vectors; the first product's, if their
    row fits and others follow.
    """
    products: list[Product] = []
    waiting: list[tuple[int, int]] = []  # shapes of the softmax's rows
    for number in range(count):
        before = products[-1] if products else None
        add = before is not None and before.partial
        product = random_product(p, before, add, number, number == count - 1, rng)
        if waiting and number == count - 2:  # the last may be weighted, so it is no part
            product = dataclasses.replace(product, partial=False)
        if not add and not product.partial:
            full = len(waiting) == 2
            if waiting and (full or number == count - 1 or sometimes(rng, 0.7)):
                vectors, length = waiting.pop(0)
                # A row of more values than a vector has belongs to several, one after another.
                if length > p.k:
                    waiting.insert(0, (vectors, length - p.k // BEAT * BEAT))
                    length = p.k // BEAT * BEAT
                x = rng.standard_normal((vectors, length)).astype(np.float16)
                product = weighted(product, x, sometimes(rng, 0.9, x.shape))
            # The last one's result shows that all went well.
            columns, vectors = len(product.scale), len(product.x)
            several = vectors == 1 and p.k >= BEAT  # vectors that one row weighs
            fits = columns <= (p.scores if several else min(p.scores, p.k))
            chosen = number == 0 or sometimes(rng, 0.35)
            softmax = number < count - 1 and len(waiting) < 2 and fits and chosen
            if softmax:
                waiting.append((vectors, columns))
            store = number == 0 or bool(sometimes(rng, 0.4))
            product = dataclasses.replace(product, softmax=bool(softmax), store=store)
        elif product.partial:
            # It has no results, so no scores.
            product = dataclasses.replace(product, softmax=bool(sometimes(rng, 0.5)))
        products.append(product)
    return products


def weighted(product: Product, x: np.ndarray, keep: np.ndarray | None = None) -> Product:
    """The product with vectors ``x [vectors, length]`` that rows of the softmax weigh."""
    length = x.shape[1]
    return dataclasses.replace(
        product,
        x=x,
        keep=np.ones(x.shape, bool) if keep is None else keep,
        weight=product.weight[np.arange(length) % len(product.weight)],
        norm=product.norm and Norm(np.float32(1 / length), product.norm.eps),
        function=None,
        weighted=True,
    )


def random_product(
    p: KllmCoreParameters,
    before: Product | None,
    add: bool,
    number: int,
    final: bool,
    rng: np.random.Generator,
) -> Product:
    """One of :func:`random_products`; with `add`, another part of the matrix before."""
    kind = int(rng.integers(0, 6))
    outliers = int(rng.choice([p.outliers, p.outliers, int(rng.integers(0, p.outliers + 1))]))
    shortest = min(p.k, 2 * outliers + 1)
    length = int(rng.choice([p.k, p.k, int(rng.integers(1, p.k + 1)), shortest]))
    small, large = (int(rng.integers(1, min(p.n, most) + 1)) for most in (4, 24))
    most = min(p.n, 64 if sometimes(rng, 0.2) else 24)
    columns = int(rng.choice([1, min(p.n, p.lanes + 1), small, large, min(p.n, 9), most]))
    vectors = int(rng.integers(1, p.vectors + 1)) if sometimes(rng, 0.4) else 1
    if final:
        columns = 1  # the number of cycles shows how late the first set is
    if before is not None and add:
        columns, vectors = len(before.scale), len(before.x)
    shape = (vectors, length)
    x = rng.standard_normal(shape).astype(np.float16)
    keep = sometimes(rng, 1, shape)
    if kind == 0:
        x[:] = x[:, :1] * rng.integers(0, 2)  # zeros, or ties and counts at their maximum
    elif kind == 1:
        keep = sometimes(rng, 0.8, shape)
    elif kind == 2 and number % 2:
        x = numbers(3, shape, rng).copy()
        x[:, rng.integers(0, length)] = rng.choice([np.inf, -np.inf, np.nan])
    elif kind == 3:
        x = numbers(1, shape, rng)
    elif kind == 4:
        # All equal but one, the rest repeated centroids.
        x[:] = 1
    new_tables = before is None or before.function is not None or bool(sometimes(rng, 0.6))
    used = None
    if before is None or new_tables:
        tables = random_tables(p, kind, rng)
        if kind != 5 and sometimes(rng, 0.3):
            used = int(rng.integers(1, len(tables.products) + 1))
            # No value is above the midpoints of centroids that are not used.
            middle = tables.midpoints.copy()
            middle[used - 1 :] = np.inf
            tables = dataclasses.replace(tables, midpoints=middle)
            x = np.nan_to_num(x, posinf=1, neginf=1)  # a NaN or infinity makes these NaN
            keep &= True
    else:
        tables, used = before.tables, before.used
        if used is not None:
            x = np.nan_to_num(x, posinf=1, neginf=1)
    weight = rng.integers(0, 1 << p.weight_bits, (length, columns))
    if kind == 0:
        weight[:] = weight[0]
    scale = numbers(0 if sometimes(rng, 0.8) else 3, columns, rng)
    integer = kind == 5 if before is None or new_tables else before.integer
    eps = rng.choice([0, 1e-5, 1])
    norm = Norm(np.float32(1 / length), np.float32(eps)) if sometimes(rng, 0.5) else None
    # Often one after another.
    again = before is not None and before.function is not None
    function = None
    if (
        new_tables
        and vectors == 1
        and not p.centroid_bits
        and sometimes(rng, 0.7 if again else 0.3)
    ):
        function = int(rng.choice([0, 1, 1, 2, 3]))
    partial = number > 0 and not final and bool(sometimes(rng, 0.25))
    return Product(
        *(x, keep, tables, new_tables, weight, scale, outliers, integer),
        signed=integer and bool(sometimes(rng, 0.5)),
        norm=norm,
        function=function,
        add=add,
        partial=partial,
        used=used,
    )


def random_tables(p: KllmCoreParameters, kind: int, rng: np.random.Generator) -> Tables:
    """Of random codebooks, some with repeated centroids, of integers, or not finite."""
    widest = rng.choice([1, 1, 4])
    a = np.sort(rng.uniform(-widest, widest, 1 << p.activation_bits)).astype(np.float16)
    b = rng.standard_normal(1 << p.weight_bits).astype(np.float16)
    if kind == 4:
        a, b = a[np.arange(len(a)) // 4 * 4], np.resize(b[:3], len(b))
    tables = tables_of(a, b)
    if kind == 5:
        lines = 2.0 ** np.arange(len(a))[:, None] * b
        # Only the lines of the integers' bits have counts; the others must not be read.
        stray = rng.standard_normal(lines.shape)
        tables = Tables(
            np.where(np.arange(len(a))[:, None] < p.activation_bits, lines, stray).astype(
                np.float16
            ),
            b,
            (np.arange(len(a) - 1) + 0.5).astype(np.float16) / np.float16(len(a) - 1),
            tables.squares,
            tables.activations,
        )
    if sometimes(rng, 0.4):  # as no squares are
        size = 2.0 ** rng.integers(-4, 12, len(a))
        squares = (rng.uniform(-1, 3, len(a)) * size).astype(np.float16)
        tables = dataclasses.replace(tables, squares=squares)
    if sometimes(rng, 0.1):
        tables.products[tuple(rng.integers(0, s) for s in tables.products.shape)] = np.inf
    if p.centroid_bits:
        high = 1 << p.centroid_bits - 1
        fixed_a, fixed_b = (rng.integers(-high, high, len(codebook)) for codebook in (a, b))
        made = FixedCodebooks(fixed_a, fixed_b, 1.0)
        tables = dataclasses.replace(tables, fixed=made, fixed_bits=p.centroid_bits)
    return tables


def fit_memory(p: KllmCoreParameters, products: list[Product]) -> list[Product]:
    """The products with matrices that together fit the address width.

    Matrices are cut to the columns that fit alone. In a full memory a product has the matrix of an
    earlier one, and its vectors are cut or repeated to its length. Parts whose numbers of columns
    then differ are separate products. No results are scores any more if one product has fewer, or a
    weighted vector has another length.
    """
    shapes = [product.weight.shape for product in products]
    rows, used = 1 << p.address_width, 0
    fitted: list[Product] = []
    stored: set[tuple[bytes, bytes]] = set()  # matrices in memory
    for product in products:
        length, columns = product.weight.shape
        sets = rows * p.scale_sets // (-(-length // p.segment) * p.scale_sets + 1)
        while p.words(length, sets * p.lanes) > rows:
            sets -= 1
        kept = min(columns, sets * p.lanes)
        product = dataclasses.replace(
            product, weight=product.weight[:, :kept], scale=product.scale[:kept]
        )
        key = (product.weight.tobytes(), product.scale.tobytes())
        needed = p.words(length, kept)
        if key not in stored and used + needed > rows:
            earlier = fitted[len(fitted) % len(stored)]
            length = earlier.x.shape[1]
            place = np.arange(length) % product.x.shape[1]
            product = dataclasses.replace(
                product,
                x=product.x[:, place],
                keep=product.keep[:, place],
                weight=earlier.weight,
                scale=earlier.scale,
            )
        elif key not in stored:
            stored.add(key)
            used += needed
        if product.add and len(product.scale) != len(fitted[-1].scale):
            product = dataclasses.replace(product, add=False)
            fitted[-1] = dataclasses.replace(fitted[-1], partial=False)
        fitted.append(product)
    made = zip(fitted, shapes, strict=True)
    if any((q.softmax or q.weighted) and q.weight.shape != shape for q, shape in made):
        fitted = [dataclasses.replace(q, softmax=False, weighted=False) for q in fitted]
    return fitted


def build(
    p: KllmCoreParameters, products: list[Product], rng: np.random.Generator, notes: list[str]
) -> Stimulus:
    """The stimulus of these products, one after the other."""
    matrices = Matrices(p)
    addresses = [matrices.add(product.weight, product.scale) for product in products]
    results = results_of_all(p, products)
    stimulus = stimulus_of(p, products, addresses, results, rng)
    return dataclasses.replace(stimulus, notes=notes, memories={"memory": matrices.memory()})
