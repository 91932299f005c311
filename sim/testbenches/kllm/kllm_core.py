"""Testbench of the accelerator: tables, vectors and a memory of weights in, results out.

A transaction is a product of a vector and a matrix.
"""

import dataclasses
import functools

import numpy as np

from golden.kllm.element_function import SILU
from golden.kllm.kllm_core import Norm, fixed_tables
from golden.trace import Trace
from hw.kllm.kllm_core import KllmCoreParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.attention.vector_path import joined, of_units
from sim.testbenches.kllm.core.products import (
    Matrices,
    Product,
    commands_of,
    results_of_all,
    stimulus_of,
)
from sim.testbenches.kllm.core.random_products import random_products, weighted
from sim.testbenches.kllm.layers import layers_of
from sim.testbenches.strategies import sometimes


class KllmCoreTestbench:
    def default_vectors(self, parameters: KllmCoreParameters) -> int:
        return 8 if parameters.k <= 64 else 4

    def mutant_vectors(self, parameters: KllmCoreParameters) -> int:
        return 8 * self.default_vectors(parameters)

    def stimulus(
        self, parameters: KllmCoreParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        notes: list[str] = []
        if trace is None:
            products = random_products(parameters, vectors, rng)
        else:
            products, notes = real_products(parameters, trace, vectors)
        fitted = fit_memory(parameters, products)
        stimulus = build(parameters, fitted, rng, notes, rough=trace is None)
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
    p: KllmCoreParameters,
    products: list[Product],
    rng: np.random.Generator,
    notes: list[str],
    rough: bool = False,
) -> Stimulus:
    """The stimulus of these products, one after the other.

    rough
        Whether matrices are anywhere in a memory that is not too large to simulate, and some counts
        in commands are out of range.
    """
    matrices = Matrices(p)
    addresses = [matrices.add(product.weight, product.scale) for product in products]
    results = results_of_all(p, products)
    ahead = 0
    if rough and p.address_width <= 16:
        room = (1 << p.address_width) - matrices.rows
        ahead = int(rng.choice([0, room, int(rng.integers(room + 1))]))
        addresses = [ahead + address for address in addresses]
    stimulus = stimulus_of(p, products, addresses, results, rng)
    if rough:
        fields = out_of_range(p, commands_of(p, products, addresses), rng)
        stimulus.inputs["command"] = payload.pack(p.command_layout, fields)
    memories = {"memory": matrices.memory(ahead)}
    return dataclasses.replace(stimulus, notes=notes, memories=memories)


def out_of_range(
    p: KllmCoreParameters, fields: dict[str, np.ndarray], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """The same commands with some counts of 0 in place of 1, and too large in place of the most."""
    changed = dict(fields)
    most = {"vectors": p.vectors, "lines": 1 << p.activation_bits, "outliers": p.outliers}
    for name, high in most.items():
        larger = rng.integers(high, 1 << high.bit_length(), len(fields[name]))
        changed[name] = np.where(fields[name] == high, larger, fields[name])
    for name in ("columns", "words", "vectors", "lines"):
        none = (fields[name] == 1) & sometimes(rng, 0.5, len(fields[name]))
        changed[name] = np.where(none, 0, changed[name])
    # A function implies tables.
    implied = fields["replace"] & sometimes(rng, 0.5, len(fields["replace"]))
    return changed | {"tables": fields["tables"] & ~implied}
