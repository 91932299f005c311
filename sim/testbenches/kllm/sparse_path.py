"""Testbench of the sparse path: rows of outliers in, sums out. A transaction is a column."""

import numpy as np

from golden.arith.formats import to_bits
from golden.kllm.sparse_path import sparse_path
from golden.trace import Trace
from hw.kllm.sparse_path import SparsePathParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.columns import columns_of
from sim.testbenches.strategies import sometimes

Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Weights, codebooks, entries (valid, position, value), and the number of rows up to each end."""


class SparsePathTestbench:
    def default_vectors(self, parameters: SparsePathParameters) -> int:
        return 100

    def stimulus(
        self, parameters: SparsePathParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            return build(parameters, *random_rows(parameters, vectors, rng), [])
        rows, notes = real_rows(parameters, trace, vectors, rng)
        return build(parameters, *rows, notes)


testbench = SparsePathTestbench()


def real_rows(
    p: SparsePathParameters, trace: Trace, columns: int, rng: np.random.Generator
) -> tuple[Rows, list[str]]:
    """Each vector's outliers, segment by segment, up to `entries` in a row."""
    c = columns_of(trace, p.k, 4, p.weight_bits, columns)
    padded = np.zeros((columns, p.segments * p.segment), np.uint8)
    padded[:, : p.k] = c.weight
    rows, weights, ends = [], [], []
    for column in range(columns):
        at = np.flatnonzero(c.outlier[column])
        for segment in range(p.segments):
            inside = at[at // p.segment == segment]
            for first in range(0, max(len(inside), 1), p.entries):
                rows.append(
                    [(n % p.segment, c.value[column, n]) for n in inside[first:][: p.entries]]
                )
                weights.append(padded[column, segment * p.segment :][: p.segment])
        ends.append(len(rows))
    shape = (len(rows), p.entries)
    valid, position = np.zeros(shape, bool), rng.integers(0, p.segment, shape)
    value = rng.integers(0, 1 << 16, shape).astype(np.uint16).view(np.float16)  # of unused entries
    for number, row in enumerate(rows):
        for port, (place, outlier) in enumerate(row):
            valid[number, port], position[number, port], value[number, port] = 1, place, outlier
    codebook = np.broadcast_to(c.codebook_b, (len(rows), len(c.codebook_b)))
    stacked = np.stack(weights)
    return (stacked, codebook, valid, position, value, np.array(ends)), c.notes


def random_rows(p: SparsePathParameters, columns: int, rng: np.random.Generator) -> Rows:
    """Rows of random columns, of one row and more."""
    lengths = rng.integers(p.segments, 2 * p.segments + 1, columns)
    short = sometimes(rng, 0.3, columns)
    lengths = np.where(short, rng.integers(1, p.segments + 1, columns), lengths)
    ends = np.cumsum(lengths)
    rows = ends[-1]
    column = np.repeat(np.arange(columns), lengths)
    shape = (rows, p.entries)
    # Columns of any number of entries, up to all, and at most k.
    valid = rng.random(shape) < rng.choice([0.0, 0.2, 0.7, 1.0], columns)[column][:, None]
    order = np.cumsum(valid.reshape(-1)).reshape(shape)
    before = np.append(0, order[:, -1])[np.append(0, ends[:-1])][column]
    valid &= order - before[:, None] <= p.k
    position = rng.integers(0, p.segment, shape)
    position = np.where(valid, position, rng.integers(0, 1 << (p.segment - 1).bit_length(), shape))
    weight = rng.integers(0, 1 << p.weight_bits, (rows, p.segment))
    kinds = rng.integers(0, 8, columns)
    value = _numbers(kinds[column], shape, rng)
    codebook = _numbers(kinds[column], (rows, 1 << p.weight_bits), rng)
    # Columns of one entry, a power of two: all powers of a product, in turn.
    single = (kinds == 5) | (kinds == 6)
    power = (np.cumsum(single) * 37 + rng.integers(79)) % 79
    of_value = rng.integers(np.maximum(power - 39, 0), np.minimum(power, 39) + 1)
    for array, exponent in ((value, of_value), (codebook, power - of_value)):
        bits = np.where(exponent < 10, 1 << np.minimum(exponent, 10), (exponent - 9) << 10)
        bits = bits[column][:, None] | rng.integers(0, 2, array.shape) << 15
        chosen = np.broadcast_to(single[column][:, None], array.shape)
        array[chosen] = bits.astype(np.uint16).view(np.float16)[chosen]
    alone = np.zeros(shape, bool)
    alone[np.append(0, ends[:-1]), 0] = True
    valid = np.where(single[column][:, None], alone, valid)
    position = np.where(valid, np.minimum(position, p.segment - 1), position)
    # Some columns in which two rows nearly cancel.
    for at in ends[kinds == 7] - 1:
        if at and lengths[column[at]] > 1:
            for array in (value, codebook, valid, position, weight):
                array[at] = array[at - 1]
            value[at] = -value[at]
            value.view(np.uint16)[at, 0] ^= np.uint16(rng.integers(0, 2))
    # An infinity or NaN in some columns; anywhere in unused entries.
    for array, chance in ((value, 0.3), (codebook, 0.2)):
        special = (sometimes(rng, chance * ~single, columns))[column][:, None]
        special = special & (sometimes(rng, 2 / array.shape[1] / p.segments, array.shape))
        if array is value:
            special |= ~valid & (sometimes(rng, 0.3, shape))
        nans = rng.choice([0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF], array.shape)
        array[special] = nans.astype(np.uint16).view(np.float16)[special]
    return weight, codebook, valid, position, value, ends


def _numbers(kind: np.ndarray, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Finite FP16 numbers; each row is of one kind."""
    sign = rng.integers(0, 2, shape) << 15
    bits = rng.integers(0, 0x7C00, shape)
    normal = rng.standard_normal(shape).astype(np.float16).view(np.uint16).astype(np.int64)
    large = np.full(shape, 0x7BFF) | sign * (sometimes(rng, 0.1, shape))
    small = sign | bits & 0x07FF
    powers = sign | np.clip((bits & 0x7C00) + rng.integers(-1, 2, shape), 0, 0x7BFF)
    any_bits = sign | bits
    kinds = [normal, normal, large, small, powers, any_bits, any_bits, any_bits]
    return np.choose(kind[:, None], kinds).astype(np.uint16).view(np.float16)


def expected(
    weight: np.ndarray,
    codebook: np.ndarray,
    valid: np.ndarray,
    position: np.ndarray,
    value: np.ndarray,
    ends: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Sum and invalid of each column; its rows' codebooks may differ."""
    # All entries of a column as one list; each row's weights index a separate codebook.
    rows, bins = codebook.shape
    position = np.where(valid, position, 0)
    index = np.take_along_axis(weight.astype(np.int64), position, axis=1)
    totals, invalid = [], []
    for first, end in zip(np.append(0, ends[:-1]), ends, strict=True):
        indices = np.arange(end - first)[:, None] * bins + index[first:end]
        total, bad = sparse_path(
            value[first:end].reshape(-1),
            indices.reshape(-1, 1),
            codebook[first:end].reshape(-1),
            valid[first:end].reshape(-1),
        )
        totals.append(total[0])
        invalid.append(bad[0])
    return np.array(totals, np.float32), np.array(invalid)


def build(
    p: SparsePathParameters,
    weight: np.ndarray,
    codebook: np.ndarray,
    valid: np.ndarray,
    position: np.ndarray,
    value: np.ndarray,
    ends: np.ndarray,
    notes: list[str],
) -> Stimulus:
    """The stimulus of these rows; ``ends``: the number of rows up to each column's end."""
    columns, rows = len(ends), len(weight)
    last = np.zeros(rows, bool)
    last[ends - 1] = True
    fields = {"weight": weight, "codebook": to_bits(codebook), "last": last}
    entries = {"valid": valid, "position": position, "value": to_bits(value)}
    for entry in range(p.entries):
        for name, array in entries.items():
            fields[f"entries[{entry}].{name}"] = array[:, entry]
    total, invalid = expected(weight, codebook, valid, position, value, ends)
    return Stimulus(
        inputs={"i": payload.pack(p.input_layout, fields)},
        outputs={"o": payload.pack(p.output_layout, {"sum": to_bits(total), "invalid": invalid})},
        transaction_of={"o": np.arange(columns)},
        transactions=columns,
        cycles=p.cycles(rows),
        notes=notes,
    )
