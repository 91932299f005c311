"""Products by the accelerator: their beats, their matrices in memory, their results and cycles.

The core's testbench makes whole stimuli of them; an engine offers some at a time to a core whose
memory holds the matrices already.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from golden.arith.formats import to_bits
from golden.kllm.cycles import Timing, Work, core_cycles, listing_of
from golden.kllm.kllm_core import Norm, Tables, Vectors, front_end, multiply
from hw.kllm.core_parameters import BEAT, IN_FLIGHT, Table
from hw.kllm.kllm_core import KllmCoreParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import Stimulus
from sim.testbenches.strategies import sometimes


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """One product, a command of the core.

    x, keep
        ``[K]``.
    tables
        Tables of the product; ``new_tables``: they are loaded for it.
    weight, scale
        ``[K, N]``, ``float16[N]``.
    """

    x: np.ndarray
    keep: np.ndarray
    tables: Tables
    new_tables: bool
    weight: np.ndarray
    scale: np.ndarray
    integer: bool = False
    norm: Norm | None = None
    function: int | None = None

    def results(self, outliers: int) -> tuple[np.ndarray, np.ndarray]:
        found = self.result(outliers)
        return found.y, found.invalid

    def result(self, outliers: int) -> "Result":
        """By the bit-exact model of a core with this number of outliers."""
        vector = front_end(self.x[None], self.tables, outliers, self.keep[None])
        y, invalid = multiply(
            vector,
            self.tables,
            self.weight,
            self.scale,
            integer=self.integer,
            norm=self.norm,
            function=self.function,
        )
        return Result(vector.outlier[0], pairs_of(vector, 0), y[0], invalid[0])


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """What the bit-exact model says of a product.

    outlier
        ``bool[K]``.
    pairs
        The vector's outliers in order, fields of the core's ``outliers``.
    y, invalid
        ``float16[N]``, ``bool[N]``.
    """

    outlier: np.ndarray
    pairs: dict[str, np.ndarray]
    y: np.ndarray
    invalid: np.ndarray


def pairs_of(vectors: Vectors, number: int) -> dict[str, np.ndarray]:
    """Fields of the beats of ``outliers`` of one of the vectors."""
    found = vectors.pairs
    fields = {
        f"{end}.{name}": found[f"{end}_{name}"][number]
        for end in ("max", "min")
        for name in ("index", "value", "repeated")
    }
    fields["present"] = found["present"][number]
    count = len(fields["present"])
    return fields | {"last": np.arange(count) == count - 1}


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

    def memory(self) -> Memory:
        return Memory(np.concatenate(self._words), "request", "response")


def words_of(p: KllmCoreParameters, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """``uint32[words, ...]``: the packed words of a matrix, in order of address."""
    length, columns = weight.shape
    words, sets = -(-length // p.segment), -(-columns // p.lanes)
    padded = np.zeros((words * p.segment, sets * p.lanes), np.uint8)
    padded[:length, :columns] = weight
    scales = np.zeros(sets * p.lanes, np.int64)
    scales[:columns] = to_bits(scale)
    padded = padded.reshape(words, p.segment, sets, p.lanes).transpose(2, 0, 3, 1)
    fields = {
        f"weight[{lane}]": padded[:, :, lane].reshape(-1, p.segment) for lane in range(p.lanes)
    }
    scales = np.repeat(scales.reshape(sets, p.lanes), words, axis=0)
    return payload.pack(p.word_layout, fields | {"scale": scales})


def tables_beats(
    p: KllmCoreParameters, tables: Tables, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Beats of `load` for one set of tables, in any order."""
    rows = [*((Table.PRODUCTS, row, values) for row, values in enumerate(tables.products))]
    rows += [(Table.WEIGHT_CENTROIDS, 0, tables.centroids), (Table.MIDPOINTS, 0, tables.midpoints)]
    rows += [(Table.SQUARES, 0, tables.squares), (Table.CENTROIDS, 0, tables.activations)]
    rows = [rows[number] for number in rng.permutation(len(rows))]
    values = np.zeros((len(rows), 1 << max(p.activation_bits, p.weight_bits)), np.int64)
    for number, (_, _, row) in enumerate(rows):
        values[number, : len(row)] = to_bits(row)
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
    expected = [results_of(p, result) for result in results]
    number = np.arange(len(products))
    return Stimulus(
        inputs=packed_inputs(p, products, addresses, rng),
        outputs={
            "outliers": payload.pack(
                p.outlier_split.pair_layout, _join([result.pairs for result in results])
            ),
            "y": payload.pack(p.output_layout, _join(expected)),
        },
        transaction_of={
            "outliers": np.repeat(number, p.outliers),
            "y": np.repeat(number, [len(beats["last"]) for beats in expected]),
        },
        transactions=len(products),
        cycles=cycles_of(p, products, [result.outlier for result in results]),
    )


def packed_inputs(
    p: KllmCoreParameters,
    products: Sequence[Product],
    addresses: Sequence[int],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Packed beats of `load`, `command` and `x`."""
    inputs = [inputs_of(p, product, rng) for product in products]
    loads = [load for load, _ in inputs if load is not None]
    return {
        "load": payload.pack(p.load_layout, _join(loads)),
        "command": payload.pack(p.command_layout, commands_of(products, addresses)),
        "x": payload.pack(p.outlier_split.input_layout, _join([beats for _, beats in inputs])),
    }


def cycles_of(
    p: KllmCoreParameters, products: Sequence[Product], outliers: Sequence[np.ndarray]
) -> int:
    """Cycles of products in an idle core; `outliers` has each vector's as ``bool[K]``."""
    work = [
        Work(
            *listing_of(outlier, p.segment, BEAT, p.entries),
            sets=-(-len(product.scale) // p.lanes),
            new_tables=product.new_tables,
            normalise=product.norm is not None,
            function=function_cycles(p, product, outlier),
        )
        for product, outlier in zip(products, outliers, strict=True)
    ]
    return core_cycles(timing_of(p), work)[-1].result + 1


def commands_of(products: Sequence[Product], addresses: Sequence[int]) -> dict[str, np.ndarray]:
    """Fields of the products' commands."""
    unused = Norm(np.float32(np.nan), np.float32(np.nan))
    norms = [product.norm or unused for product in products]
    functions = [product.function for product in products]
    fields: dict[str, list] = {
        "columns": [len(product.scale) for product in products],
        "address": list(addresses),
        "integer": [product.integer for product in products],
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
    """Beats of `load`, None without new tables, and of `x`; bits without meaning are random."""
    load = tables_beats(p, product.tables, rng) if product.new_tables else None
    length = len(product.x)
    count = -(-length // BEAT)
    bits = rng.integers(0, 1 << 16, count * BEAT)
    bits[:length] = to_bits(product.x)
    kept = np.zeros(count * BEAT, bool)
    kept[:length] = product.keep
    if length == p.k:  # positions beyond the core's end are not kept
        kept[length:] = sometimes(rng, 0.5, count * BEAT - length)
    last = np.arange(count) == count - 1
    if count == p.outlier_split.beats:
        last &= sometimes(rng, 0.75)
    mask = kept.reshape(count, BEAT) @ (1 << np.arange(BEAT))
    return load, {"values": bits.reshape(count, BEAT), "keep": mask, "last": last}


def results_of(p: KllmCoreParameters, result: Result) -> dict[str, np.ndarray]:
    """Beats of `y`."""
    columns = len(result.y)
    sets = -(-columns // p.lanes)
    padded = np.zeros((3, sets * p.lanes), np.int64)
    padded[:, :columns] = to_bits(result.y), np.ones(columns), result.invalid
    y, keep, invalid = padded.reshape(3, sets, p.lanes)
    powers = 1 << np.arange(p.lanes)
    return {
        "y": y,
        "keep": keep @ powers,
        "invalid": invalid @ powers,
        "last": np.arange(sets) == sets - 1,
    }


def function_cycles(p: KllmCoreParameters, product: Product, outlier: np.ndarray):
    """Cycles that a function takes for each beat's outliers; None without one."""
    if product.function is None:
        return None
    padded = np.zeros(-(-len(outlier) // BEAT) * BEAT, bool)
    padded[: len(outlier)] = outlier
    count = padded.reshape(-1, BEAT).sum(axis=1)
    return [p.codebook_replacement.wait(outliers) for outliers in count.tolist()]


def timing_of(p: KllmCoreParameters) -> Timing:
    """The cycle model's constants of a core."""
    return Timing(
        load_rows=(1 << p.activation_bits) + len(Table) - 1,  # one row of each other table
        table_rows=1 << p.activation_bits,
        search=p.outlier_split.search,
        setup=p.clustering_unit.setup,
        counted=p.rms_factor.column_counter.latency,
        summed=p.rms_factor.sum_latency - p.rms_factor.column_counter.latency,
        root=p.rms_factor.inverse_rms.latency,
        replace=p.codebook_replacement.rebuild,
        groups=p.groups,
        stages=p.counter_stages,
        tail=p.lane.latency - p.counter_stages,
        in_flight=IN_FLIGHT,
    )


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
