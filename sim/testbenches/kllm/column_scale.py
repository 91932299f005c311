"""Testbench of the column scale: sums and scales in, results out."""

import numpy as np

from golden.algorithms.kllm.matvec import concatenate, count_indices, product_table
from golden.kllm.column_scale import column_scale
from golden.kllm.reduction import reduction
from golden.kllm.sparse_path import sparse_path
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.kllm.columns import columns_of
from sim.testbenches.kllm.exact_sums import double_ties
from sim.testbenches.strategies import sometimes

POSITIONS = 576  # in a column of real data


class ColumnScaleTestbench(DatapathTestbench):
    def draw(self, parameters, trace, vectors, seed):
        """Sums and scales of real products; or random numbers, most with results in range."""
        if trace is not None:
            return real_sums(trace, vectors, seed)
        values, notes = super().draw(parameters, None, vectors, seed)
        rng = np.random.default_rng(seed)
        # Three in four: moderate scales, a result of any size FP16 has, terms of any ratio.
        some = sometimes(rng, 0.75, vectors)
        scales = {
            name: (rng.uniform(-2, 2, vectors) * 2.0 ** rng.integers(-6, 5, vectors)).astype(
                np.float16
            )
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
        return values, notes


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


testbench = ColumnScaleTestbench(
    operands=lambda p: {"s": "fp32", "o": "fp32", "s_a": "fp16", "r": "fp16", "s_b": "fp16"},
    results=lambda p: {"y": "fp16"},
    golden=lambda p, **operands: {"y": column_scale(**operands)},
)
