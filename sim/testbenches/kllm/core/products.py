"""Products by the accelerator: their beats, their matrices in memory, their results and cycles.

The core's testbench makes whole stimuli of them; an engine offers some at a time to a core whose
memory holds the matrices already.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from golden.arith.float_multiply import float_multiply
from golden.arith.formats import to_bits
from golden.kllm.kllm_core import Norm, Tables, Vectors, front_end, multiply, sums
from golden.kllm.softmax import softmax
from hw.kllm.core.core_parameters import BEAT
from hw.kllm.core.table import Table
from hw.kllm.kllm_core import KllmCoreParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.core.product_cycles import cycles_of
from sim.testbenches.memory import memory_of
from sim.testbenches.strategies import sometimes


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """One product, a command of the core.

    x, keep
        ``[V, K]``: the vectors of its batch.
    tables
        Tables of the product; ``new_tables``: they are loaded for it.
    weight, scale
        ``[K, N]``, ``float16[N]``.
    outliers
        At each end of each vector.
    add, partial
        The sums of the product before are added; there are no results.
    used
        Lines of the table of products with counts, where they are not all.
    store, softmax, weighted
        As in the core's command. `x` is that before it is weighted.
    """

    x: np.ndarray
    keep: np.ndarray
    tables: Tables
    new_tables: bool
    weight: np.ndarray
    scale: np.ndarray
    outliers: int
    integer: bool = False
    signed: bool = False
    norm: Norm | None = None
    function: int | None = None
    add: bool = False
    partial: bool = False
    used: int | None = None
    store: bool = False
    softmax: bool = False
    weighted: bool = False

    def result(
        self, kept: np.ndarray | None = None, probabilities: np.ndarray | None = None
    ) -> "Result":
        """By the bit-exact model.

        kept
            ``float32[V, N]``: the sums of the product before.
        probabilities
            ``float16[V, K]``: by which `x` is weighted.
        """
        x = self.x if probabilities is None else float_multiply(self.x, probabilities)
        v = front_end(x, self.tables, self.outliers, self.keep)
        options: dict[str, Any] = {
            "integer": self.integer,
            "signed": self.signed,
            "function": self.function,
        }
        options["kept"] = kept if self.add else None
        total = sums(v, self.tables, self.weight, **options)
        y, invalid = multiply(v, self.tables, self.weight, self.scale, norm=self.norm, **options)
        return Result(v.outlier, pairs_of(v), y, invalid, total, v)

    def lines(self) -> int:
        """Lines of the table of products with counts."""
        lines = len(self.tables.products)
        return self.used or ((lines - 1).bit_length() if self.integer else lines)


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """What the bit-exact model says of a product.

    outlier
        ``bool[V, K]``.
    pairs
        The vectors' outliers in order, fields of the core's ``outliers``.
    y, invalid
        ``float16[V, N]``, ``bool[V, N]``.
    total
        ``float32[V, N]``: the sums, which a partial product keeps.
    vectors
        The vectors, split and clustered.
    """

    outlier: np.ndarray
    pairs: dict[str, np.ndarray]
    y: np.ndarray
    invalid: np.ndarray
    total: np.ndarray
    vectors: Vectors


class Scores:
    """Rows of the softmax of a core, as the products before have made them."""

    def __init__(self, p: KllmCoreParameters):
        self._length = p.scores
        self._rows: list[np.ndarray] = []

    def add(self, y: np.ndarray) -> None:
        """The results of a product whose results are scores."""
        rows, _ = softmax(y, np.ones(y.shape, bool), self._length)
        self._rows += [*rows]

    def take(self, vectors: int, length: int) -> np.ndarray:
        """``float16[vectors, length]``: the probabilities of the next vectors."""
        taken = []
        for _ in range(vectors):
            row = self._rows.pop(0)
            taken.append(row[:length])
            if len(row) > length:
                self._rows.insert(0, row[length:])
        return np.array(taken)


def results_of_all(p: KllmCoreParameters, products: Sequence[Product]) -> list[Result]:
    """Of products one after another."""
    results: list[Result] = []
    scores = Scores(p)
    for product in products:
        probabilities = scores.take(*product.x.shape) if product.weighted else None
        results.append(product.result(results[-1].total if results else None, probabilities))
        if product.softmax and not product.partial:
            scores.add(results[-1].y)
    return results


def pairs_of(vectors: Vectors, chosen: slice = slice(None)) -> dict[str, np.ndarray]:
    """Fields of the beats of ``outliers``, of all or some of the vectors."""
    found = vectors.pairs
    names = [(end, name) for end in ("max", "min") for name in ("index", "value", "repeated")]
    fields = {f"{end}.{name}": found[f"{end}_{name}"][chosen].ravel() for end, name in names}
    present = found["present"][chosen]
    last = np.broadcast_to(np.arange(present.shape[1]) == present.shape[1] - 1, present.shape)
    return fields | {"present": present.ravel(), "last": last.ravel()}


class Matrices:
    """Matrices in the core's memory one after another, each of them once."""

    def __init__(self, parameters: KllmCoreParameters):
        self._parameters = parameters
        self._address: dict[tuple[bytes, bytes], int] = {}
        self._words: list[np.ndarray] = []
        self.rows = 0

    def add(self, weight: np.ndarray, scale: np.ndarray) -> int:
        """Address of the first word of a matrix ``[K, N]`` with scales ``float16[N]``."""
        key = (weight.tobytes(), scale.tobytes())
        if key not in self._address:
            self._address[key] = self.rows
            self._words.append(words_of(self._parameters, weight, scale))
            self.rows += len(self._words[-1])
        return self._address[key]

    def memory(self, ahead: int = 0) -> Memory:
        """The memory, with `ahead` unused rows ahead of the first matrix."""
        unused = np.zeros((ahead, *self._words[0].shape[1:]), self._words[0].dtype)
        return memory_of(np.concatenate([unused, *self._words]), written=False)


def words_of(p: KllmCoreParameters, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """``uint32[words, ...]``: the packed words of a matrix, in order of address.

    A word of scales ahead of the words of every `scale_sets` sets.
    """
    length, columns = weight.shape
    words, sets = -(-length // p.segment), -(-columns // p.lanes)
    padded = np.zeros((words * p.segment, sets * p.lanes), np.uint8)
    padded[:length, :columns] = weight
    scales = np.zeros(sets * p.lanes, np.int64)
    scales[:columns] = to_bits(scale)
    padded = padded.reshape(words, p.segment, sets, p.lanes).transpose(2, 0, 3, 1)
    fields = {f"[{lane}]": padded[:, :, lane].reshape(-1, p.segment) for lane in range(p.lanes)}
    weights = payload.pack(p.word_layout, fields)
    # Scales are 16 bits each, from a word's lowest bits on.
    blocks = -(-sets // p.scale_sets)
    halves = np.zeros((blocks, 2 * weights.shape[1]), np.uint16)
    held = p.scale_sets * p.lanes
    halves[:, :held] = np.resize(np.append(scales, np.zeros(held)), (blocks, held))
    packed = np.zeros((p.words(length, columns), weights.shape[1]), np.uint32)
    place = np.arange(sets * words)
    packed[place + place // (words * p.scale_sets) + 1] = weights
    packed[np.arange(blocks) * (words * p.scale_sets + 1)] = halves.view(np.uint32)
    return packed


def tables_beats(
    p: KllmCoreParameters, tables: Tables, rng: np.random.Generator, squares: bool = True
) -> dict[str, np.ndarray]:
    """Beats of `tables` for one set of tables, in any order.

    squares
        Whether the squares are used; else a row that such lanes do not have is in their place.
    """
    rows = [*((Table.PRODUCTS, row, values) for row, values in enumerate(tables.products))]
    if tables.fixed is not None:
        codebooks = (tables.fixed.activations, tables.fixed.weights)
        rows = [(Table.FIXED, row, values) for row, values in enumerate(codebooks)]
    rows += [(Table.WEIGHT_CENTROIDS, 0, tables.centroids), (Table.MIDPOINTS, 0, tables.midpoints)]
    rows += [(Table.SQUARES, 0, tables.squares), (Table.CENTROIDS, 0, tables.activations)]
    if not squares:
        rows[-2] = Table.FIXED, int(rng.integers(2)), tables.squares[::-1]
    rows = [rows[number] for number in rng.permutation(len(rows))]
    values = np.zeros((len(rows), 1 << max(p.activation_bits, p.weight_bits)), np.int64)
    for number, (_, _, row) in enumerate(rows):
        values[number, : len(row)] = row & 0xFFFF if row.dtype.kind == "i" else to_bits(row)
    return {
        "table": np.array([row[0] for row in rows]),
        "row": np.array([row[1] for row in rows]),
        "values": values,
        "last": np.arange(len(rows)) == len(rows) - 1,
    }


def stimulus_of(
    p: KllmCoreParameters,
    products: Sequence[Product],
    addresses: Sequence[int],
    results: Sequence[Result],
    rng: np.random.Generator,
) -> Stimulus:
    """The stimulus of products whose matrices are in memory at `addresses`, without the memory."""
    expected = [
        results_of(p, result, product.partial or product.softmax)
        for product, result in zip(products, results, strict=True)
    ]
    stored = [stored_of(product, result) for product, result in zip(products, results, strict=True)]
    number = np.arange(len(products))
    stimulus = Stimulus(
        inputs=packed_inputs(p, products, addresses, rng),
        outputs={
            "outliers": payload.pack(
                p.outlier_split.pair_layout, _join([result.pairs for result in results])
            ),
            "indices": payload.pack(p.stored_layout, _join(stored)),
            "y": payload.pack(p.output_layout, _join(expected)),
        },
        transaction_of={
            "outliers": np.repeat(number, [len(result.pairs["last"]) for result in results]),
            "indices": np.repeat(number, [len(beats["last"]) for beats in stored]),
            "y": np.repeat(number, [len(beats["last"]) for beats in expected]),
        },
        transactions=len(products),
        cycles=cycles_of(p, products, [result.outlier for result in results]),
    )
    # A lane that multiplies takes a column of one word in a cycle.
    return with_words_late(p, stimulus, products) if p.centroid_bits else stimulus


def with_words_late(
    p: KllmCoreParameters, stimulus: Stimulus, products: Sequence[Product]
) -> Stimulus:
    """The stimulus for products whose columns have about as many words as they take cycles.

    The cycle model has words in time. A memory that gives one a cycle may then be late, by at most
    a cycle for each word that it reads.
    """
    words = sum(p.words(*product.weight.shape) for product in products)
    return dataclasses.replace(stimulus, band=(stimulus.cycles, stimulus.cycles + words))


def packed_inputs(
    p: KllmCoreParameters,
    products: Sequence[Product],
    addresses: Sequence[int],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Packed beats of `tables`, `command` and `x`."""
    inputs = [inputs_of(p, product, rng) for product in products]
    loads = [load for load, _ in inputs if load is not None]
    return {
        "tables": payload.pack(p.table_layout, _join(loads)),
        "command": payload.pack(p.command_layout, commands_of(p, products, addresses)),
        "x": payload.pack(p.outlier_split.input_layout, _join([beats for _, beats in inputs])),
    }


def commands_of(
    p: KllmCoreParameters, products: Sequence[Product], addresses: Sequence[int]
) -> dict[str, np.ndarray]:
    """Fields of the products' commands."""
    unused = Norm(np.float32(np.nan), np.float32(np.nan))
    norms = [product.norm or unused for product in products]
    functions = [product.function for product in products]
    fields: dict[str, list] = {
        "vectors": [len(product.x) for product in products],
        "words": [-(-product.x.shape[1] // p.segment) for product in products],
        "outliers": [product.outliers for product in products],
        "columns": [len(product.scale) for product in products],
        "address": list(addresses),
        "integer": [product.integer for product in products],
        "signed": [product.signed for product in products],
        "lines": [product.lines() for product in products],
        **{
            name: [getattr(product, name) for product in products]
            for name in ("add", "partial", "store", "softmax", "weighted")
        },
        "tables": [product.new_tables for product in products],
        "normalise": [product.norm is not None for product in products],
        "replace": [function is not None for function in functions],
        "op": [function or 0 for function in functions],
    }
    constants = {
        name: to_bits(np.array([getattr(norm, name) for norm in norms], np.float32))
        for name in ("inverse_k", "eps")
    }
    return {name: np.array(values) for name, values in fields.items()} | constants


def inputs_of(
    p: KllmCoreParameters, product: Product, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray] | None, dict[str, np.ndarray]]:
    """Beats of `tables`, None without new tables, and of `x`; bits without meaning are random."""
    load = None
    if product.new_tables:
        # Tables of a product with a function have no other product.
        squares = product.function is None or product.norm is not None
        load = tables_beats(p, product.tables, rng, squares)
    vectors, length = product.x.shape
    count = -(-length // BEAT)
    bits = rng.integers(0, 1 << 16, (vectors, count * BEAT))
    bits[:, :length] = to_bits(product.x)
    kept = np.zeros((vectors, count * BEAT), bool)
    kept[:, :length] = product.keep
    if length == p.k:  # positions beyond the core's end are not kept
        kept[:, length:] = sometimes(rng, 0.5, (vectors, count * BEAT - length))
    last = np.tile(np.arange(count) == count - 1, (vectors, 1))
    if count == p.outlier_split.beats:
        last &= sometimes(rng, 0.75, (vectors, 1))
    mask = kept.reshape(-1, BEAT) @ (1 << np.arange(BEAT))
    return load, {"values": bits.reshape(-1, BEAT), "keep": mask, "last": last.ravel()}


def stored_of(product: Product, result: Result) -> dict[str, np.ndarray]:
    """Beats of `indices`; none of a product whose vectors are not stored."""
    v = result.vectors
    vectors, length = v.activation.shape
    count = -(-length // BEAT)
    rest = ((0, 0), (0, count * BEAT - length))
    inliers = np.where(v.keep, v.activation, 0)
    index, keep = (np.pad(a, rest).reshape(-1, BEAT) for a in (inliers, v.keep))
    fields = {
        "index": index,
        "keep": keep @ (1 << np.arange(BEAT)),
        "last": np.tile(np.arange(count) == count - 1, vectors),
        "scale": np.repeat(to_bits(v.scale), count),
    }
    return fields if product.store else {name: field[:0] for name, field in fields.items()}


def results_of(p: KllmCoreParameters, result: Result, silent: bool) -> dict[str, np.ndarray]:
    """Beats of `y`, set by set, each vector's in turn; none of a product that gives none."""
    vectors, columns = result.y.shape
    sets = -(-columns // p.lanes)
    padded = np.zeros((3, vectors, sets * p.lanes), np.int64)
    padded[:, :, :columns] = to_bits(result.y), np.ones((vectors, columns)), result.invalid
    beats = padded.reshape(3, vectors, sets, p.lanes).swapaxes(1, 2).reshape(3, -1, p.lanes)
    y, keep, invalid = beats[:, :0] if silent else beats
    powers = 1 << np.arange(p.lanes)
    return {
        "y": y,
        "keep": keep @ powers,
        "invalid": invalid @ powers,
        "last": np.arange(len(y)) == len(y) - 1,
    }


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
