"""Testbench of Orizuru: activation vectors in, pairs in pop order out. A transaction is a
vector."""

import numpy as np

from golden.kllm.orizuru import pop_order
from golden.trace import Trace
from hw.kllm.orizuru import OrizuruParameters
from sim.core import payload
from sim.core.stimulus import ShownRun, Stimulus
from sim.testbenches.operands import to_fp16, vectors_by_name
from sim.testbenches.strategies import sometimes


class OrizuruTestbench:
    def default_vectors(self, parameters: OrizuruParameters) -> int:
        return 192 if parameters.n <= 64 else 32

    def stimulus(
        self, parameters: OrizuruParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is not None:
            x, notes = vectors_of(trace, parameters.n, vectors)
            lengths = np.full(vectors, parameters.n)
            keep = np.ones(x.shape, bool)
            k = np.full(vectors, parameters.k)
        else:
            notes = []
            sets = [corner_vectors(parameters, rng)]
            neighbours = neighbour_vectors(parameters, rng)
            # Only all of them: a few would replace random vectors without covering all bits.
            if vectors >= len(sets[0][0]) + len(neighbours[0]):
                sets.append(neighbours)
            missing = max(0, vectors - sum(len(x) for x, *_ in sets))
            sets.append(random_vectors(parameters, missing, rng))
            x, keep, lengths, k = (
                np.concatenate(parts)[:vectors] for parts in zip(*sets, strict=True)
            )
        return build(parameters, x, keep, lengths, k, rng, notes)

    def shown(self, run: ShownRun, figure) -> str:
        """The first vector, and the pairs that the RTL popped first."""
        i, o = run.inputs["i"], run.outputs["o"]
        lanes, beats = run.parameters.lanes, int(np.flatnonzero(i["last"])[0]) + 1
        bits = np.stack([i[f"values[{lane}]"][:beats] for lane in range(lanes)], axis=1)
        vector = bits.astype(np.uint16).view(np.float16).ravel()
        pairs = min(5, int(np.flatnonzero(o["last"])[0]) + 1)
        axes = figure.subplots()
        axes.bar(range(len(vector)), vector, color="0.8")
        for end, colour, offset in (("max", "C0", 4), ("min", "C1", -12)):
            for number, index in enumerate(o[f"{end}.index"][:pairs].astype(int)):
                axes.bar(index, vector[index], color=colour)
                axes.annotate(
                    f"{number + 1}",
                    (index, max(vector[index], 0) if end == "max" else min(vector[index], 0)),
                    textcoords="offset points",
                    xytext=(0, offset),
                    ha="center",
                    color=colour,
                )
        axes.margins(y=0.15)
        axes.set_xlabel("index")
        axes.set_ylabel("activation")
        return (
            f"One activation vector of {len(vector)} values, and the first {pairs} pairs that the "
            "RTL popped: the largest (blue) and the smallest (orange), numbered in their order."
        )


testbench = OrizuruTestbench()


def vectors_of(trace: Trace, n: int, vectors: int) -> tuple[np.ndarray, list[str]]:
    """``float16[vectors, n]`` from a trace's activations (or its other arrays)."""
    arrays = vectors_by_name(trace)
    names, widths = ", ".join(arrays), ", ".join(str(array.shape[1]) for array in arrays.values())
    notes = [f"Vectors of {n} values are cut from or joined of rows of {names} ({widths} values)."]
    rows = []
    for name, array in arrays.items():
        half, remarks = to_fp16(name, array)
        rows.append(half)
        notes += remarks
    # One vector from each array in turn, so that a few vectors already show every layer.
    pieces = [_cut_or_tile(array, n) for array in rows]
    order = [piece[i] for i in range(max(map(len, pieces))) for piece in pieces if i < len(piece)]
    stock = np.stack(order)
    if vectors > len(stock):
        notes.append(f"The trace's {len(stock)} vectors are repeated to make {vectors}.")
    return stock[np.arange(vectors) % len(stock)], notes


def _cut_or_tile(rows: np.ndarray, n: int) -> np.ndarray:
    """``[any, n]``: rows cut into pieces of n, or joined (and repeated if too few) to n values."""
    width = rows.shape[1]
    if width >= n:
        return rows[:, : width // n * n].reshape(-1, n)
    values = np.resize(rows, max(rows.size, n))
    return values[: values.size // n * n].reshape(-1, n)


def corner_vectors(parameters: OrizuruParameters, rng: np.random.Generator):
    """Vectors of every special case, each as (x, keep, length, k)."""
    n, k_max = parameters.n, parameters.k
    ramp = np.linspace(-1000, 1000, n).astype(np.float16)
    mixed = rng.normal(size=n).astype(np.float16)
    some_nan = mixed.copy()
    some_nan[rng.integers(0, n, max(1, n // 3))] = np.nan
    infinite = mixed.copy()
    infinite[rng.integers(0, n, max(1, n // 4))] = np.inf
    infinite[rng.integers(0, n, max(1, n // 4))] = -np.inf
    signed_zeros = np.where(sometimes(rng, 0.5, n), np.float16(-0.0), np.float16(0.0))
    tiny = (rng.integers(0, 4, n) * np.float16(6e-8) * rng.choice([-1, 1], n)).astype(np.float16)
    everything = [mixed, ramp, ramp[::-1], some_nan, infinite, signed_zeros, tiny]
    everything += [np.full(n, value, np.float16) for value in (1.5, np.nan, np.inf, -np.inf)]
    rows = [(x, np.ones(n, bool), n, k_max) for x in everything]
    rows += [(mixed, np.ones(n, bool), n, k) for k in (0, min(1, k_max))]
    rows += [(some_nan, np.zeros(n, bool), n, k_max)]  # no value is kept
    one = np.zeros(n, bool)
    one[n - 1] = True
    rows += [(some_nan, one, n, k_max), (some_nan, sometimes(rng, 0.5, n), n, k_max)]
    # First a vector of one beat: it must not see register contents from before reset.
    rows = [(some_nan, np.ones(n, bool), 1, k_max), *rows, (mixed, np.ones(n, bool), n, k_max)]
    x, keep, lengths, k = zip(*rows, strict=True)
    return np.stack(x), np.stack(keep), np.array(lengths), np.array(k)


def neighbour_vectors(parameters: OrizuruParameters, rng: np.random.Generator):
    """Vectors whose values differ in one bit, for each bit and each level of a unit's trees."""
    n = parameters.n
    levels = max(1, min(n, parameters.radix).bit_length() - 1)
    grids = np.meshgrid(np.arange(16), np.arange(levels), (0, 1))
    bit, level, side = (grid.reshape(-1, 1) for grid in grids)
    flip = (np.arange(n) >> level & 1) ^ side
    base = rng.integers(0, 1 << 16, bit.shape)
    x = (base ^ flip << bit).astype(np.uint16).view(np.float16)
    vectors = len(x)
    return x, np.ones(x.shape, bool), np.full(vectors, n), np.full(vectors, parameters.k)


def random_vectors(parameters: OrizuruParameters, vectors: int, rng: np.random.Generator):
    """Vectors of random kind, length, mask and k, each as (x, keep, length, k)."""
    n, shape, column = parameters.n, (vectors, parameters.n), (vectors, 1)
    bit = np.uint16(1) << rng.integers(0, 16, column).astype(np.uint16)
    sign = rng.integers(0, 2, shape).astype(np.uint16) << 15
    base = rng.integers(0, 1 << 16, column).astype(np.uint16)
    one_nan = rng.normal(size=shape).astype(np.float16).view(np.uint16)
    nan = rng.integers(0, 2, vectors) << 15 | 0x7C00 | 1 << rng.integers(0, 10, vectors)
    one_nan[np.arange(vectors), rng.integers(0, n, vectors)] = nan
    kinds = [
        rng.normal(size=shape).astype(np.float16).view(np.uint16),
        rng.integers(-3, 4, shape).astype(np.float16).view(np.uint16),  # ties
        rng.integers(0, 1 << 16, shape).astype(np.uint16),  # any bits
        one_nan,
        base ^ bit * rng.integers(0, 2, shape).astype(np.uint16),  # values one bit apart
        sign | bit & 0x7FFF,  # a single magnitude bit
        sign | (0x7C00 ^ (bit & 0x7C00)),  # one exponent bit short of infinity
        np.broadcast_to(nan[:, None], shape),  # NaNs only, mostly masked below
    ]
    kind = rng.integers(0, len(kinds), column)
    x = np.choose(kind, [k.astype(np.uint16) for k in kinds]).view(np.float16)
    full = sometimes(rng, 0.5, vectors)
    lengths = np.where(full, n, rng.integers(1, n + 1, vectors))
    # Most vectors are whole; some lack one value, hold one, or any share of them.
    one = np.arange(n) == rng.integers(0, n + 1, column)
    masks = [np.ones(shape, bool), rng.random(shape) < rng.random(column), one, ~one]
    keep = np.choose(np.where(kind == 7, 2, rng.choice(4, column, p=(0.55, 0.25, 0.1, 0.1))), masks)
    powers = np.minimum(1 << rng.integers(0, parameters.k.bit_length() + 1, vectors), parameters.k)
    choices = [np.full(vectors, parameters.k), rng.integers(0, parameters.k + 1, vectors), powers]
    k = np.choose(rng.choice(3, vectors, p=(0.4, 0.3, 0.3)), choices)
    # After a full vector with k = 0, a short one must not see its values.
    silent = sometimes(rng, 0.1, vectors)
    silent[-1:] = False
    after = np.roll(silent, 1)
    k = np.where(silent, 0, np.where(after, parameters.k, k))
    lengths = np.where(silent, n, np.where(after, np.minimum(lengths, parameters.lanes), lengths))
    return x, keep, lengths, k


def build(
    parameters: OrizuruParameters,
    x: np.ndarray,
    keep: np.ndarray,
    lengths: np.ndarray,
    k: np.ndarray,
    rng: np.random.Generator,
    notes: list[str],
) -> Stimulus:
    """The stimulus of these vectors: ``x, keep [vectors, n]``, ``lengths, k [vectors]``."""
    p = parameters
    vectors = len(x)
    # Input beats, in a grid of [vector, beat]; short vectors stop early.
    grid = p.beats * p.lanes
    position = np.arange(grid)
    bits = np.zeros((vectors, grid), np.uint16)
    bits[:, : p.n] = x.view(np.uint16)
    kept = np.zeros((vectors, grid), bool)
    kept[:, : p.n] = keep & (position[: p.n] < lengths[:, None])
    # Values that are not kept have any bits, NaNs included.
    any_bits = rng.integers(0, 1 << 16, bits.shape, np.uint16)
    bits = np.where(kept, bits, any_bits)
    stray = np.zeros_like(kept)
    stray[:, p.n :] = sometimes(rng, 0.5, (vectors, grid - p.n))  # lanes past the engine's end
    beats = -(-lengths // p.lanes)
    exists = np.arange(p.beats) < beats[:, None]
    last = np.arange(p.beats) == beats[:, None] - 1
    # A full vector may leave `last` out; k counts only on the beat that ends the vector.
    announced = last & ~((beats == p.beats)[:, None] & (sometimes(rng, 0.25, (vectors, 1))))
    pairs = np.where(last, k[:, None], rng.integers(0, p.k + 1, last.shape))
    lanes = (kept | stray).reshape(vectors, p.beats, p.lanes)
    masks = np.sum([lanes[..., lane].astype(object) << lane for lane in range(p.lanes)], axis=0)
    inputs = payload.pack(
        p.input_layout,
        {
            "values": bits.reshape(vectors, p.beats, p.lanes)[exists],
            "keep": masks[exists].astype(np.uint64),
            "k": pairs[exists],
            "last": announced[exists],
        },
    )
    # Expected pairs, k of them for each vector.
    popped = pop_order(x, kept[:, : p.n], p.k)
    wanted = np.arange(p.k) < k[:, None]
    transaction = np.broadcast_to(np.arange(vectors)[:, None], wanted.shape)[wanted]
    final = np.arange(p.k) == k[:, None] - 1
    outputs = payload.pack(
        p.output_layout,
        {
            "max.index": popped["max_index"][wanted],
            "max.value": popped["max_value"][wanted],
            "min.index": popped["min_index"][wanted],
            "min.value": popped["min_value"][wanted],
            "present": popped["present"][wanted],
            "invalid": popped["invalid"][transaction],
            "last": final[wanted],
        },
    )
    return Stimulus(
        inputs={"i": inputs},
        outputs={"o": outputs},
        transaction_of={"o": transaction},
        transactions=vectors,
        cycles=p.total_cycles(beats.tolist(), k.tolist()),
        notes=notes,
    )
