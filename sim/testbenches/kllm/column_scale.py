"""Testbench of the column scale: columns' sums and scales in, results out.

A transaction is a column.
"""

import numpy as np

from golden.algorithms.kllm.matvec import concatenate, count_indices, product_table
from golden.arith.formats import to_bits
from golden.kllm.column_scale import column_result, column_sum
from golden.kllm.reduction import reduction
from golden.kllm.sparse_path import sparse_path
from golden.trace import Trace
from hw.kllm.column_scale import ColumnScaleParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.arith.operands import random_floats
from sim.testbenches.kllm.columns import columns_of
from sim.testbenches.kllm.exact_sums import double_ties
from sim.testbenches.strategies import picks, sometimes

POSITIONS = 576  # in a column of real data
OPERANDS = {"s": "fp32", "o": "fp32", "s_a": "fp16", "r": "fp16", "s_b": "fp16"}


class ColumnScaleTestbench:
    def default_vectors(self, parameters: ColumnScaleParameters) -> int:
        return 1000

    def stimulus(
        self, parameters: ColumnScaleParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        first, add = runs(parameters.columns, vectors, rng)
        if trace is None:
            return build(parameters, draw(vectors, seed), first, add, [], rng)
        values, notes = real_sums(trace, vectors, seed)
        return build(parameters, values, first, add, notes)


testbench = ColumnScaleTestbench()


def runs(columns: int, vectors: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """``bool[vectors]`` twice: the column is a run's first; the sum kept is added.

    A run is the columns of one product. It is of any length, also longer than `columns`. It adds,
    all of its columns or any of them, if every sum that is kept at its columns' numbers was
    written.
    """
    first, add = np.zeros(vectors, bool), np.zeros(vectors, bool)
    at = written = 0  # columns so far; numbers below `written` have a sum
    while at < vectors:
        longest = min(vectors - at, columns + 3)
        of_parts = written and sometimes(rng, 0.75)  # as long as an earlier product, or shorter
        longest = min(longest, written) if of_parts else longest
        length = int(rng.choice([1, min(2, longest), longest, int(rng.integers(1, longest + 1))]))
        run = slice(at, at + length)
        first[at] = True
        if length <= written:
            add[run] = sometimes(rng, rng.choice([0, 0.5, 1, 1]), length)
        written = max(written, min(length, columns))
        at += length
    return first, add


def chains(columns: int, first: np.ndarray, add: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The column whose sum each one adds, itself without one; and the length of the chain to it."""
    before, depth = np.arange(len(first)), np.zeros(len(first), int)
    latest: dict[int, int] = {}  # column that wrote each number's sum
    number = 0
    for column in range(len(first)):
        number = 0 if first[column] else (number + 1) % columns
        if add[column]:
            before[column] = latest[number]
            depth[column] = depth[latest[number]] + 1
        latest[number] = column
    return before, depth


def build(
    parameters: ColumnScaleParameters,
    values: dict[str, np.ndarray],
    first: np.ndarray,
    add: np.ndarray,
    notes: list[str],
    rng: np.random.Generator | None = None,
) -> Stimulus:
    """The stimulus of these columns.

    values
        Operands by name, one for each column.
    first, add
        As :func:`runs` has them.
    rng
        To make low-order bits of kept sums observable: some operands of columns that add one are
        then drawn again. By default, all are as given.
    """
    vectors = len(first)
    values = {name: values[name].copy() for name in OPERANDS}
    before, depth = chains(parameters.columns, first, add)
    total = np.zeros(vectors, np.float32)
    # All columns at the same place in their chains are independent of one another.
    for place in range(depth.max(initial=0) + 1):
        at = np.flatnonzero(depth == place)
        kept = total[before[at]] if place else None
        some = {name: values[name][at] for name in OPERANDS}
        if kept is not None and rng is not None:
            some = near_kept(some, kept, rng)
            for name, array in some.items():
                values[name][at] = array
        total[at] = column_sum(some["s"], some["o"], some["s_a"], kept)
    y = column_result(total, values["r"], values["s_b"])
    fields = {name: to_bits(array) for name, array in values.items()} | {"first": first, "add": add}
    return Stimulus(
        inputs={"i": payload.pack(parameters.input_layout, fields)},
        outputs={"o": payload.pack(parameters.output_layout, {"y": to_bits(y)})},
        transaction_of={"o": np.arange(vectors)},
        transactions=vectors,
        cycles=parameters.cycles(vectors),
        notes=notes,
    )


def near_kept(
    values: dict[str, np.ndarray], kept: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Three in four: sparse sums that bring sums with the kept ones to where rounding shows.

    ``cancel``: a few units in the last place are left, or the upper bits cancel. ``tie``: halfway
    between two numbers, or next to that. ``split``: the column's own sum and the kept one are the
    sum as it was drawn.
    """
    count = len(kept)
    kind = picks(rng, (count,), {"cancel": 1, "tie": 1, "split": 1, "as drawn": 1})
    with np.errstate(all="ignore"):
        wide, unit = kept.astype(np.float64), np.spacing(kept).astype(np.float64)
        dense = values["s_a"].astype(np.float64) * values["s"]
        units = rng.integers(-3, 4, count) * unit
        part = wide * powers(-24, 1, count, rng)
        off = np.where(sometimes(rng, 0.5, count), 0, powers(-30, -1, count, rng))
        half = unit * rng.choice([0.5, 0.5, 0.25, 1.5, -0.5, -1.5], count) * (1 + off)
        drawn = dense + values["o"].astype(np.float64)
        o = np.select(
            [kind == "cancel", kind == "tie", kind == "split"],
            [np.where(sometimes(rng, 0.5, count), units, part) - wide, half, drawn - wide - dense],
        ).astype(np.float32)
        # Where the sum is zero or is lost below another's bits, no operand is changed.
        chosen = (kind != "as drawn") & np.isfinite(o) & (np.abs(wide) > 2.0**-90)
        alone = chosen & (kind != "split")
        left = np.abs(np.where(kind == "cancel", wide + o, wide))
        low = np.log2(np.where(left > 0, left, 1))  # y is of any size that FP16 has
        sizes = np.clip(rng.uniform(-24, 16, count) - low, -48, 30)
        factors = np.exp2(np.array([np.floor(sizes / 2), np.ceil(sizes / 2)]))
        factors = (factors * rng.uniform(1, 2, (2, count))).astype(np.float16)
    return {
        "s": np.where(alone, np.float32(0), values["s"]),
        "o": np.where(chosen, o, values["o"]),
        "s_a": values["s_a"],
        "r": np.where(alone, factors[0], values["r"]),
        "s_b": np.where(alone, factors[1], values["s_b"]),
    }


def draw(vectors: int, seed: int) -> dict[str, np.ndarray]:
    """Random operands by name, most with results in range."""
    rng = np.random.default_rng(seed)
    values: dict[str, np.ndarray] = {}
    for name, kind in OPERANDS.items():
        values[name] = random_floats(kind, vectors, list(values.values()), rng)
    rng = np.random.default_rng(seed)
    # Three in four: moderate scales, a result of any size FP16 has, terms of any ratio.
    some = sometimes(rng, 0.75, vectors)
    scales = {
        name: (rng.uniform(-2, 2, vectors) * 2.0 ** rng.integers(-6, 5, vectors)).astype(np.float16)
        for name in ("s_a", "r", "s_b")
    }
    size = rng.uniform(-2, 2, vectors) * 2.0 ** rng.integers(-27, 17, vectors)
    near = rng.uniform(-2, 2, vectors) * 2.0 ** rng.integers(-26, 27, vectors)
    near = np.where(sometimes(rng, 0.3, vectors), -1.0 + near * 2.0**-26, near)
    with np.errstate(all="ignore"):
        wide = {name: scale.astype(np.float64) for name, scale in scales.items()}
        total = size / (wide["r"] * wide["s_b"])
        dense = total / wide["s_a"]
        sums = {"s": dense.astype(np.float32), "o": (total * near).astype(np.float32)}
        scales["s_b"] = near_ties(sums, scales, rng)
    for name, array in (sums | scales).items():
        values[name] = np.where(some, array, values[name])
    for draw in (ties, dense_ties, small_results, vanishing):
        taken, drawn = sometimes(rng, 0.1, vectors), draw(vectors, rng)
        values = {name: np.where(taken, drawn[name], old) for name, old in values.items()}
    special = sometimes(rng, 0.05, vectors)
    for name, old in values.items():
        values[name] = np.where(special, rng.choice(specials(old.dtype), vectors), old)
    return values


def specials(dtype) -> np.ndarray:
    """Zeros, ones, the ends of the range, infinities and subnormals of both signs, and NaN."""
    info = np.finfo(dtype)
    some = [0, 1, info.tiny, 1.5 * info.tiny, info.smallest_subnormal, info.max, np.inf]
    return np.array([*some, *np.negative(some), np.nan], dtype)


def powers(low: int, high: int, vectors: int, rng, signs: bool = True) -> np.ndarray:
    return 2.0 ** rng.integers(low, high, vectors) * (rng.choice([-1, 1], vectors) if signs else 1)


def ties(vectors: int, rng) -> dict[str, np.ndarray]:
    """The last product is a tie of FP32 next to a tie of FP16; the sum before it is rounded."""
    found = double_ties()
    v, a, b = found[rng.integers(0, len(found), vectors)].T
    total = v * powers(-8, 8, vectors, rng)
    # All dense, all sparse, or their difference, plus almost a tie.
    dense = total * rng.choice([0, 0.5, 0.75, 0.875, 1, 1, 1, 1.125, 1.25, 1.5, 2], vectors)
    half = np.spacing(total.astype(np.float32)).astype(np.float64) / 2
    more = half * powers(-3, 1, vectors, rng) * (1 + powers(-24, -1, vectors, rng))
    more = np.choose(rng.integers(0, 3, vectors), [0, half, more])
    s_a, r = powers(-8, 8, vectors, rng), powers(-8, 8, vectors, rng)
    # Results from the smallest on, as most ties are lost where only a few bits are kept.
    low = np.clip(-14 - np.log2(np.abs(total * r)) + rng.integers(-10, 20, vectors), -14, 14)
    return as_operands(dense / s_a, total - dense + more, s_a, r * a / 1024, 2.0**low * b / 1024)


def dense_ties(vectors: int, rng) -> dict[str, np.ndarray]:
    """A dense product that is a tie, or a unit from one; the sparse sum leaves its low bits."""
    a = rng.integers(512, 1024, vectors) * 2 + 1
    inverse = a
    for _ in range(5):  # Newton's iteration, modulo 2^24
        inverse = inverse * (2 - a * inverse) % (1 << 24)
    last = (1 << rng.integers(8, 12, vectors)) + rng.integers(-1, 2, vectors)
    above = rng.integers(0, 1 << 13, vectors) << 11
    ones = (1 << np.minimum(rng.integers(12, 37, vectors), 24)) - (
        1 << rng.integers(10, 12, vectors)
    )
    # Any bits above, or all ones for the rounding's carry to propagate.
    last = np.where(sometimes(rng, 0.5, vectors), above | last % (1 << 11), ones + last)
    s = (last * inverse % (1 << 24)) * powers(-30, -18, vectors, rng, signs=False)
    s_a = a * powers(-18, -6, vectors, rng)
    dense = (s * s_a).astype(np.float32)
    o = rng.integers(-3, 4, vectors) * np.spacing(dense) - dense
    scale = rng.uniform(1, 2, (2, vectors)) * 2.0 ** rng.integers(0, 15, (2, vectors))
    return as_operands(s, o, s_a, *scale)


def small_results(vectors: int, rng) -> dict[str, np.ndarray]:
    """Results of a few units of the smallest number, at ties or next to them."""
    half = rng.integers(0, 16, vectors) / 2 + powers(-20, 0, vectors, rng)
    half -= np.where(sometimes(rng, 0.3, vectors), powers(-20, 0, vectors, rng), 0)
    s_a, r, s_b = (powers(-10, 10, vectors, rng) for _ in range(3))
    # A third of the scales are subnormal, and more than powers.
    small = rng.integers(1, 1 << rng.integers(1, 11, (3, vectors))) * 2.0**-24
    rare = sometimes(rng, 1 / 3, (3, vectors))
    s_a, r, s_b = np.where(rare, small, [s_a, r, s_b])
    return as_operands(half * 2.0**-24 / (r * s_b * s_a), np.zeros(vectors), s_a, r, s_b)


def vanishing(vectors: int, rng) -> dict[str, np.ndarray]:
    """Sums and products near the smallest FP32 numbers, made observable by an infinite factor."""
    s, o = (powers(-126, -100, vectors, rng) * rng.uniform(1, 2, vectors) for _ in range(2))
    o = np.choose(rng.integers(0, 3, vectors), [o, 0, -0.0])
    s = np.where(sometimes(rng, 0.2, vectors), 0, s)
    r = np.where(sometimes(rng, 0.8, vectors), np.inf, 1)
    return as_operands(s, o, powers(-24, 3, vectors, rng), r, powers(-24, 15, vectors, rng))


def as_operands(s, o, s_a, r, s_b) -> dict[str, np.ndarray]:
    sums = {"s": s.astype(np.float32), "o": o.astype(np.float32)}
    with np.errstate(over="ignore"):
        scales = {"s_a": s_a, "r": r, "s_b": s_b}
        return sums | {name: scale.astype(np.float16) for name, scale in scales.items()}


TRIES = 64


def near_ties(sums, scales, rng):
    """The one of TRIES variations of each s_b whose result is nearest to a tie."""
    s_b = scales["s_b"] * rng.uniform(0.5, 2, (TRIES, len(scales["s_b"]))).astype(np.float16)
    wide = {name: array.astype(np.float32) for name, array in scales.items()}
    total = wide["s_a"] * sums["s"] + sums["o"]
    y = (total * wide["r"]).astype(np.float64) * s_b
    unit = np.spacing(y.astype(np.float16)).astype(np.float64)
    off = np.nan_to_num(np.abs(y / unit % 1 - 0.5), nan=1)
    return s_b[off.argmin(axis=0), np.arange(s_b.shape[1])]


def real_sums(trace, vectors, seed):
    """Both sums of columns of a trace, by their golden models, and scales as such data has."""
    rng = np.random.default_rng(seed)
    columns = min(vectors, 64)
    c = columns_of(trace, POSITIONS, 4, 4, columns)
    counts = [
        count_indices(concatenate(a, w[:, None], 4), 256, ~outlier)[0]
        for a, w, outlier in zip(c.activation, c.weight, c.outlier, strict=True)
    ]
    table = product_table(c.codebook_a, c.codebook_b, np.float16)
    dense = reduction(np.stack(counts), table)[0]
    sparse = sparse_path(c.value, c.weight[..., None], c.codebook_b, c.outlier)[0][:, 0]
    at = np.arange(vectors) % columns
    return {
        "s": dense[at],
        "o": sparse[at],
        "s_a": rng.uniform(0.5, 16, vectors).astype(np.float16),
        "r": rng.uniform(0.02, 2, vectors).astype(np.float16),
        "s_b": rng.uniform(0.05, 1, vectors).astype(np.float16),
    }, [*c.notes, f"{columns} columns are scaled by random scales."]
