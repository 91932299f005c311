"""The four ways to sum a column's products, each with inputs of a trace and its model's outputs."""

import dataclasses
from collections.abc import Callable

import numpy as np

from golden.algorithms.kllm.matvec import product_table
from golden.algorithms.kllm.quantize import dynamic_outliers, inlier_scale, outlier_count
from golden.arith.dot_product import dot_product
from golden.arith.formats import to_bits
from golden.kllm.centroid_lane import centroid_sum, fixed_codebooks
from golden.kllm.clustering_unit import cluster, scaled_midpoints
from golden.kllm.column_counter import column_counts
from golden.kllm.reduction import reduction
from golden.trace import Trace
from hw.arith.dot_product import DotProduct, DotProductParameters
from hw.component import Component
from hw.kllm.centroid_sum import CentroidSum, CentroidSumParameters
from hw.kllm.column_counter import ColumnCounter, ColumnCounterParameters
from hw.kllm.reduction import Reduction, ReductionParameters
from sim.core import payload
from sim.synth.activity import RUNS
from sim.testbenches.kllm.layers import layers_of

BITS = 4
"""Of both indices."""

STEPS = 8
"""Number of steps of a column.

As many as groups of MACS of the 256 bins, so that the reduction keeps pace.
"""

MACS = 32
FP16_PAIRS = 16

Ports = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Columns of K-Means indices, `columns` after one another in each of RUNS runs.

    activation, weight
        ``[RUNS, columns, K]`` indices.
    keep
        ``bool[RUNS, columns, K]``: not outliers.
    codebook_a, codebook_b
        ``float16[RUNS, 16]``.
    """

    activation: np.ndarray
    weight: np.ndarray
    keep: np.ndarray
    codebook_a: np.ndarray
    codebook_b: np.ndarray

    def steps(self, array: np.ndarray, segment: int) -> np.ndarray:
        """``[columns * K / segment, RUNS, segment]``: step by step."""
        return array.reshape(RUNS, -1, segment).swapaxes(0, 1)


def data_of(trace: Trace, k: int, columns: int) -> Data:
    """Vectors of the trace's layers, one for each run, by columns of their matrices."""
    count = outlier_count(k)
    layers, _ = layers_of(trace, k, columns * -(-RUNS // 6), BITS, BITS, count)
    parts = []
    for run in range(RUNS):
        number, layer = run // len(layers), layers[run % len(layers)]
        x = layer.x[number % len(layer.x)]
        outlier = dynamic_outliers(x, count)
        index = cluster(x, scaled_midpoints(layer.tables.midpoints, inlier_scale(x, outlier)))
        at = np.arange(number * columns, (number + 1) * columns) % layer.weights.index.shape[1]
        parts.append(
            (
                np.broadcast_to(index, (columns, k)),
                layer.weights.index.T[at],
                np.broadcast_to(~outlier, (columns, k)),
                layer.codebook,
                layer.weights.codebook,
            )
        )
    return Data(*(np.stack(part) for part in zip(*parts, strict=True)))


@dataclasses.dataclass(frozen=True, eq=False)
class Design:
    """A piece of hardware, its inputs and what its outputs must be.

    positions
        Positions that a step multiplies, for areas; one column is `steps` cycles.
    inputs
        Port to ``bool[cycles, RUNS, bits]``, one beat in each cycle.
    check
        Whether the outputs, as recorded in every cycle from the first beat on, are right.
    pieces
        Gates from which on a sub-module is mapped by itself; None maps all as one.
    """

    name: str
    component: Callable[[], Component]
    positions: int
    steps: int
    inputs: Callable[[], Ports]
    check: Callable[[Ports], bool]
    pieces: int | None = None


def designs(data: Data, counters: int) -> list[Design]:
    """All of them for a step of 16 * `counters` positions; of multiply-accumulates 16."""
    made = [counter(data, counters), bins(data, counters)]
    made += [centroids(data, counters, bits) for bits in (8, 12)]
    return [*made, fp16(data)]


def counter(data: Data, counters: int) -> Design:
    k = data.weight.shape[2]
    p = ColumnCounterParameters(k, counters=counters, macs=MACS, stages=1 if counters < 8 else 3)

    def inputs() -> Ports:
        fields = {
            name: data.steps(array, p.segment)
            for name, array in (
                ("activation", data.activation),
                ("weight", data.weight),
                ("mask", data.keep),
            )
        }
        return stream(p.input_layout, fields | {"last": last_of(data)})

    def check(outputs: Ports) -> bool:
        return same(outputs, p.output_layout, {"counts": counts_of(data)})

    return Design(
        "counting: counters", lambda: ColumnCounter(p), p.segment, STEPS, inputs, check, pieces=1000
    )


def counts_of(data: Data) -> np.ndarray:
    """``[columns * groups, RUNS, MACS]``."""
    runs, columns, k = data.weight.shape
    activation, weight, keep = (
        array.reshape(-1, k) for array in (data.activation, data.weight, data.keep)
    )
    last = np.ones(runs * columns, bool)
    counts = column_counts(activation, weight, keep, ~last, last, BITS, BITS)
    return counts.reshape(runs, -1, MACS).swapaxes(0, 1)


def bins(data: Data, counters: int) -> Design:
    """The reduction of the counts, whose share of a position falls with the step's size."""
    k = data.weight.shape[2]
    p = ReductionParameters(k, macs=MACS)
    tables = np.stack(
        [
            product_table(a, b, np.float16)
            for a, b in zip(data.codebook_a, data.codebook_b, strict=True)
        ]
    )
    columns = data.weight.shape[1]

    def inputs() -> Ports:
        products = np.tile(to_bits(tables).reshape(RUNS, -1, MACS).swapaxes(0, 1), (columns, 1, 1))
        fields = {"counts": counts_of(data), "products": products, "last": last_of(data)}
        return stream(p.input_layout, fields)

    def check(outputs: Ports) -> bool:
        counts = counts_of(data).swapaxes(0, 1).reshape(RUNS, columns, -1)
        total, _ = reduction(counts, tables[:, None])
        return same(outputs, p.output_layout, {"sum": to_bits(total).T})

    positions = 16 * counters
    return Design("counting: reduction", lambda: Reduction(p), positions, STEPS, inputs, check)


def centroids(data: Data, counters: int, bits: int) -> Design:
    k = data.weight.shape[2]
    p = CentroidSumParameters(k, bits=bits, counters=counters)
    books = [
        fixed_codebooks(a, b, bits) for a, b in zip(data.codebook_a, data.codebook_b, strict=True)
    ]
    a, b = (np.stack([getattr(book, n) for book in books]) for n in ("activations", "weights"))
    run = np.arange(RUNS)[:, None, None]
    activation = np.where(data.keep, a[run, data.activation], 0)

    def inputs() -> Ports:
        fields = {
            "activation": data.steps(activation, p.segment),
            "weight": data.steps(data.weight, p.segment),
            "codebook": np.broadcast_to(b, (STEPS * data.weight.shape[1], *b.shape)),
            "last": last_of(data),
        }
        return stream(p.input_layout, fields)

    def check(outputs: Ports) -> bool:
        weight = b[run, data.weight]
        total = np.stack(
            [centroid_sum(x[:1], w.T, bits)[0] for x, w in zip(activation, weight, strict=True)]
        )
        return same(outputs, None, {"payload": to_bits(total).T})

    return Design(f"{bits}-bit centroids", lambda: CentroidSum(p), p.segment, STEPS, inputs, check)


def fp16(data: Data) -> Design:
    """FP16 products added in a tree, operands given as FP16; no look-up and no accumulator."""
    p = DotProductParameters.presets()["fp16_16_pipelined"]
    run = np.arange(RUNS)[:, None, None]
    a = np.where(data.keep, data.codebook_a[run, data.activation], np.float16(0))
    a, b = (data.steps(x, p.n) for x in (a, data.codebook_b[run, data.weight]))

    def inputs() -> Ports:
        return {
            "a": bits_of(to_bits(a), 16),
            "b": bits_of(to_bits(b), 16),
            "enable": np.ones((len(a), RUNS, 1), bool),
        }

    def check(outputs: Ports) -> bool:
        expected = bits_of(to_bits(dot_product(a, b))[..., None], 16)
        return np.array_equal(outputs["o"][p.stages :][: len(a)], expected)

    steps = data.weight.shape[2] // p.n
    return Design("FP16 multipliers and adders", lambda: DotProduct(p), p.n, steps, inputs, check)


def last_of(data: Data) -> np.ndarray:
    """``bool[cycles, RUNS]``: the last step of each column."""
    last = np.arange(STEPS * data.weight.shape[1]) % STEPS == STEPS - 1
    return np.broadcast_to(last[:, None], (len(last), RUNS))


def stream(layout, fields: Ports) -> Ports:
    """An input stream that is always valid, and an output that is always ready."""
    cycles = len(next(iter(fields.values())))
    flat = {name: a.reshape(cycles * RUNS, *a.shape[2:]) for name, a in fields.items()}
    words = payload.pack(layout, flat)
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), axis=1, bitorder="little")
    bits = bits[:, : payload.width(layout)].astype(bool)
    always = np.ones((cycles, RUNS, 1), bool)
    return {
        "i__payload": bits.reshape(cycles, RUNS, -1),
        "i__valid": always,
        "o__ready": always,
    }


def bits_of(values: np.ndarray, width: int) -> np.ndarray:
    """``bool[..., n * width]``: the bits of the last axis' n values, lowest first."""
    bits = np.asarray(values)[..., None] >> np.arange(width) & 1
    return bits.astype(bool).reshape(*values.shape[:-1], -1)


def same(outputs: Ports, layout, expected: Ports) -> bool:
    """Whether the beats of an output stream are these ``[beats, RUNS, ...]``."""
    valid = outputs["o__valid"][..., 0]
    if not (valid == valid[:, :1]).all():
        return False
    bits = outputs["o__payload"][valid[:, 0]]
    for name, values in expected.items():
        at, width = 0, 32
        if layout is not None:
            found = [f for f in payload.fields(layout) if f[0].partition("[")[0] == name]
            at, width = found[0][1:]
        values = values.reshape(*values.shape[:2], -1)
        wanted = bits_of(values, width)
        if len(bits) < len(wanted):
            return False
        if not np.array_equal(bits[: len(wanted), :, at : at + wanted.shape[-1]], wanted):
            return False
    return True
