"""Bench of the scaling of a column's sums."""

import numpy as np

from golden.kllm.column_scale import column_scale
from golden.kllm.matvec import concatenate, count_indices, product_table
from golden.kllm.reduction import reduction
from golden.kllm.sparse_path import sparse_path
from sim.benches.arith.datapath_bench import DatapathBench
from sim.benches.kllm.columns import columns_of

POSITIONS = 576  # in a column of real data


def exact(p, s, o, s_a, r, s_b):
    with np.errstate(all="ignore"):
        return (s_a * s + o) * (r * s_b)


class ColumnScaleBench(DatapathBench):
    def draw(self, parameters, trace, vectors, seed):
        """Sums and scales of real products; or random numbers, most with results in range."""
        if trace is not None:
            return real_sums(trace, vectors, seed)
        values, notes = super().draw(parameters, None, vectors, seed)
        rng = np.random.default_rng(seed)
        # Three in four: moderate scales, a result of any size FP16 has, terms of any ratio.
        some = rng.random(vectors) < 0.75
        scales = {
            name: (rng.uniform(-2, 2, vectors) * 2.0 ** rng.integers(-6, 5, vectors)).astype(
                np.float16
            )
            for name in ("s_a", "r", "s_b")
        }
        size = rng.uniform(-2, 2, vectors) * 2.0 ** rng.integers(-27, 17, vectors)
        near = rng.uniform(-2, 2, vectors) * 2.0 ** rng.integers(-26, 27, vectors)
        near = np.where(rng.random(vectors) < 0.3, -1.0 + near * 2.0**-26, near)
        with np.errstate(all="ignore"):
            wide = {name: scale.astype(np.float64) for name, scale in scales.items()}
            total = size / (wide["r"] * wide["s_b"])
            dense = total / wide["s_a"]
            sums = {"s": dense.astype(np.float32), "o": (total * near).astype(np.float32)}
            scales["s_b"] = near_ties(sums, scales, rng)
        for name, array in (sums | scales).items():
            values[name] = np.where(some, array, values[name])
        return values, notes


TRIES = 64


def near_ties(sums, scales, rng):
    """Of some changes of s_b those that bring results nearest to a tie of the last rounding."""
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


bench = ColumnScaleBench(
    operands=lambda p: {"s": "fp32", "o": "fp32", "s_a": "fp16", "r": "fp16", "s_b": "fp16"},
    results=lambda p: {"y": "fp16"},
    golden=lambda p, **operands: {"y": column_scale(**operands)},
    exact=exact,
)
