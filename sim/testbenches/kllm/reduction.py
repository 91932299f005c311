"""Testbench of the reduction: histograms in, weighted sums out. A transaction is a column."""

import numpy as np

from golden.algorithms.kllm.matvec import concatenate, count_indices, product_table
from golden.arith.formats import to_bits
from golden.kllm.reduction import reduction
from golden.trace import Trace
from hw.kllm.reduction import ReductionParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.columns import columns_of
from sim.testbenches.strategies import sometimes

LONGER = 2  # beats of a column beyond the number of groups


class ReductionTestbench:
    def default_vectors(self, parameters: ReductionParameters) -> int:
        return 100

    def stimulus(
        self, parameters: ReductionParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        p = parameters
        if trace is None:
            counts, products, beats = random_columns(p, vectors, rng)
            return build(p, counts, products, beats, [])
        counts, products, notes = real_columns(p, trace, vectors)
        return build(p, counts, products, np.full(vectors, p.groups), notes)


testbench = ReductionTestbench()


def real_columns(p: ReductionParameters, trace: Trace, columns: int):
    """Histograms and products ``[columns, bins]`` of quantised products of a trace."""
    c = columns_of(trace, p.k, p.activation_bits, p.weight_bits, columns)
    counts = [
        count_indices(concatenate(a, w[:, None], p.weight_bits), p.bins, ~outlier)[0]
        for a, w, outlier in zip(c.activation, c.weight, c.outlier, strict=True)
    ]
    table = product_table(c.codebook_a, c.codebook_b, np.float16)
    return np.stack(counts), np.broadcast_to(table, (columns, p.bins)), c.notes


def random_columns(p: ReductionParameters, columns: int, rng: np.random.Generator):
    """Counts and products ``[columns, bins of the longest]``, and each column's beats."""
    drawn = rng.integers(1, p.groups + LONGER + 1, columns)
    beats = np.where(sometimes(rng, 0.6, columns), p.groups, drawn)
    bins = (p.groups + LONGER) * p.macs
    counts = np.zeros((columns, bins), np.int64)
    products = np.zeros((columns, bins), np.float16)
    for column in range(columns):
        size = beats[column] * p.macs
        counts[column, :size] = _counts(p, size, rng)
        products[column, :size] = _products(counts[column, :size], rng)
    return counts, products, beats


def _counts(p: ReductionParameters, bins: int, rng: np.random.Generator) -> np.ndarray:
    counts = np.zeros(bins, np.int64)
    kind = rng.integers(0, 6)
    at = rng.permutation(bins)
    if kind == 0:  # the largest counts, in the fewest bins
        counts[at[: p.activation_bits]] = p.k
    elif kind == 1:  # powers of two, up to the limit
        few = rng.integers(1, bins + 1)
        counts[at[:few]] = 1 << rng.integers(0, p.k.bit_length(), few)
    elif kind == 2:  # a bin or two
        counts[at[:2]] = rng.integers(0, p.k + 1, min(2, bins))
    else:  # any distribution from even to concentrated
        weight = rng.random(bins) ** rng.choice([0.0, 1.0, 8.0])
        wanted = rng.integers(0, p.k + 1) if kind > 3 else p.k
        counts = rng.multinomial(wanted, weight / weight.sum())
    counts = np.minimum(counts, p.k)
    fits = np.cumsum(counts[at]) <= p.total
    counts[at] = np.where(fits, counts[at], 0)
    return counts


def _products(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    bins = len(counts)
    sign = rng.integers(0, 2, bins).astype(np.uint16) << 15
    bits: np.ndarray = rng.integers(0, 0x7C00, bins).astype(np.uint16)
    kind = rng.integers(0, 9)
    if kind == 0:  # the largest number
        bits, sign = np.full(bins, 0x7BFF, np.uint16), np.full(bins, sign[0])
    elif kind == 1:  # subnormal numbers and small ones
        bits &= 0x07FF
    elif kind == 2:  # powers of two and their neighbours
        bits = np.clip((bits & 0x7C00) + rng.integers(-1, 2, bins), 0, 0x7BFF).astype(np.uint16)
    elif kind == 3:  # large terms cancel, in pairs of equal counts
        half = bins // 2
        counts[half : 2 * half] = counts[:half] = np.minimum(counts[:half], counts[half:][:half])
        bits[half : 2 * half] = bits[:half]
        sign[half : 2 * half] = sign[:half] ^ 0x8000
        if sometimes(rng, 0.7):
            bits[rng.integers(bins)] ^= np.uint16(1)
    elif kind == 4:  # one large term, and others near the last place of its sum
        bits = (rng.integers(0, 8, bins) << 10).astype(np.uint16)
        bits[np.argmax(counts)] = rng.integers(21, 31) << 10
        sign = sign if sometimes(rng, 0.5) else sign & 0
    elif kind == 5:  # like centroids
        values = rng.standard_normal(bins).astype(np.float16).view(np.uint16)
        bits, sign = values & 0x7FFF, values & 0x8000
    # Special numbers in empty bins, and sometimes in one with a count.
    special = (counts == 0) & (sometimes(rng, 0.2, bins))
    if (kind > 7 or sometimes(rng, 0.05)) and counts.any():
        special[rng.choice(np.flatnonzero(counts))] = True
    infinite = sometimes(rng, 0.5, bins)
    nan = 0x7C00 | 1 << rng.integers(0, 10, bins)
    bits = np.where(special, np.where(infinite, 0x7C00, nan), bits).astype(np.uint16)
    return (bits | sign).view(np.float16)


def build(
    p: ReductionParameters,
    counts: np.ndarray,
    products: np.ndarray,
    beats: np.ndarray,
    notes: list[str],
) -> Stimulus:
    """The stimulus of these columns: counts, products ``[columns, bins]``, beats ``[columns]``."""
    columns = len(counts)
    longest = counts.shape[1] // p.macs
    exists = np.arange(longest) < beats[:, None]
    last = np.arange(longest) == beats[:, None] - 1
    inside = np.repeat(exists, p.macs, axis=1)
    total, invalid = reduction(np.where(inside, counts, 0), products)
    return Stimulus(
        inputs={
            "i": payload.pack(
                p.input_layout,
                {
                    "counts": counts.reshape(columns, longest, p.macs)[exists],
                    "products": to_bits(products).reshape(columns, longest, p.macs)[exists],
                    "last": last[exists],
                },
            )
        },
        outputs={"o": payload.pack(p.output_layout, {"sum": to_bits(total), "invalid": invalid})},
        transaction_of={"o": np.arange(columns)},
        transactions=columns,
        cycles=p.cycles(int(beats.sum())),
        notes=notes,
    )
