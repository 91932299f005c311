"""Random products of the accelerator: every kind of vector, table and command."""

import dataclasses

import numpy as np

from golden.kllm.centroid_lane import FixedCodebooks
from golden.kllm.kllm_core import Norm, Tables, tables_of
from hw.kllm.core.core_parameters import BEAT
from hw.kllm.kllm_core import KllmCoreParameters
from sim.testbenches.kllm.core.products import Product
from sim.testbenches.kllm.exact_sums import numbers
from sim.testbenches.strategies import sometimes


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
        final = number == count - 1
        if not add and sometimes(rng, 0.5):
            product = telling_product(p, before, final, rng)
        else:
            product = random_product(p, before, add, number, final, rng)
        if waiting and number == count - 2:  # the last may be weighted, so it is no part
            product = dataclasses.replace(product, partial=False)
        if not add and not product.partial:
            full = len(waiting) == 2
            if waiting and (full or final or sometimes(rng, 0.7)):
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
            softmax = not final and len(waiting) < 2 and fits and chosen
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
    most = min(p.n, int(rng.choice([64, int(rng.integers(25, 65))])) if sometimes(rng, 0.3) else 24)
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
        and sometimes(rng, 0.7 if again or integer else 0.3)
    ):
        function = int(rng.choice([0, 1, 1, 2, 3]))
    signed = integer and bool(sometimes(rng, 0.5))
    if integer and function is not None and sometimes(rng, 0.5):
        # All indices are 0, which as integers have no counts: the result is NaN by its scale alone.
        x[:, rng.integers(0, length)] = np.nan
        outliers, signed = 0, False
    partial = number > 0 and not final and bool(sometimes(rng, 0.25))
    return Product(
        *(x, keep, tables, new_tables, weight, scale, outliers, integer),
        signed=signed,
        norm=norm,
        function=function,
        add=add,
        partial=partial,
        used=used,
    )


def telling_product(
    p: KllmCoreParameters, before: Product | None, final: bool, rng: np.random.Generator
) -> Product:
    """One of few values at scaled midpoints or beside them, so that each bit of its tables shows.

    All but two are inliers with a scale that is a power of two. Often several in a row have the
    same tables, so that as many as can be are in flight.
    """
    plain = before is not None and before.function is None and not before.integer
    new_tables = before is None or not plain or before.used is not None or sometimes(rng, 0.4)
    tables = telling_tables(p, rng) if before is None or new_tables else before.tables
    few, many = (int(rng.integers(1, min(p.n, most) + 1)) for most in (4, 16))
    columns = 1 if final else int(rng.choice([1, few, few, many]))
    vectors = int(rng.integers(1, p.vectors + 1)) if sometimes(rng, 0.3) else 1
    shape = vectors, int(rng.integers(2, min(p.k, 9) + 1))
    near = tables.midpoints[np.abs(tables.midpoints) < 1]
    near = np.append(near, rng.uniform(-1, 1, 1)).astype(np.float16)
    x = rng.choice(near, shape)
    beside = np.nextafter(x, rng.choice([-2, 2], shape).astype(np.float16))
    x = np.where(sometimes(rng, 0.5, shape), x, beside)
    x[:, 0] = rng.choice([-1, 1])
    outliers = int(shape[1] > 3 and sometimes(rng, 0.5))
    if outliers:
        x[:, 1:3] = 1.5, -3
    function = None
    if new_tables and vectors == 1 and not p.centroid_bits and sometimes(rng, 0.5):
        function = int(rng.integers(0, 4))
    return Product(
        rng.permuted(x * np.float16(2.0 ** rng.integers(-4, 5)), axis=1),
        np.ones(shape, bool),
        tables,
        new_tables,
        rng.integers(0, 1 << p.weight_bits, (shape[1], columns)),
        numbers(0, columns, rng),
        outliers,
        norm=Norm(np.float32(1 / shape[1]), np.float32(0)) if sometimes(rng, 0.6) else None,
        function=function,
    )


def telling_tables(p: KllmCoreParameters, rng: np.random.Generator) -> Tables:
    """Tables whose midpoints are between -1 and 1, so that any index may be a vector's."""
    tables = random_tables(p, 1, rng)
    low, high = np.sort(rng.uniform(-1, 1, 2))
    middle = np.sort(rng.uniform(low, high, len(tables.midpoints))).astype(np.float16)
    size = 2.0 ** rng.integers(-4, 8, len(tables.squares))
    squares = (rng.uniform(1, 2, len(size)) * size).astype(np.float16)
    return dataclasses.replace(tables, midpoints=middle, squares=squares)


def random_tables(p: KllmCoreParameters, kind: int, rng: np.random.Generator) -> Tables:
    """Of random codebooks, some with repeated centroids, of integers, or not finite."""
    widest = rng.choice([1, 1, 4])
    middle = widest * rng.choice([-0.5, 0, 0, 0.5])
    a = rng.uniform(middle - widest, middle + widest, 1 << p.activation_bits)
    a = np.sort(a).astype(np.float16)
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
