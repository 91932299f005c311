"""Rows of the sixth design's blocks: keys of a trace, and rows of every kind."""

import numpy as np

from golden.trace import Trace
from sim.testbenches.operands import numbers
from sim.testbenches.strategies import pick, signs, sometimes
from sim.testbenches.unicaim.operands import keys_and_queries, within_fp16

OFTEN = {"normal": 6, "outlier": 3, "spread": 2, "flat": 1, "grid": 1, "pair": 1}
SELDOM = dict.fromkeys(("plain", "any", "small", "one", "special", "zero"), 1)
KINDS = OFTEN | SELDOM
"""Weights of the kinds of :func:`random_row`."""


def trace_rows(trace: Trace, d: int, count: int) -> tuple[np.ndarray, list[str]]:
    """Keys and queries in turn, float16[count, d], and notes."""
    k, q, note = keys_and_queries(trace, d, count)
    rows = np.stack([k, q], axis=1).reshape(-1, d)[:count]
    return within_fp16(rows), [f"{note}, limited to FP16's range."]


def random_row(d: int, rng: np.random.Generator) -> np.ndarray:
    """A row float16[d]: normal of any size, with an outlier, of elements of all sizes, of one or of
    few magnitudes (which are between two scales or levels), of two that cancel among small ones,
    with infinities and NaNs, of subnormal numbers, of zeros."""
    kind = pick(rng, KINDS)
    if kind == "zero":
        return np.where(rng.random(d) < 0.5, 0.0, -0.0).astype(np.float16)
    if kind not in OFTEN:
        return numbers(kind, d, rng)
    if kind == "flat":
        # Half of them about the least and the largest scale.
        exponent = rng.integers(-22, 12) if sometimes(rng, 0.5) else rng.choice([-19, -18, 9, 10])
        return within_fp16(signs(rng, d) * rng.integers(16, 32) * 2.0**exponent)
    x = rng.standard_normal(d)
    if kind == "grid":
        x = np.round(x * 32) / 32
    if kind == "pair":
        x *= 2.0 ** rng.integers(-16, -8)
        x[:2] = (signs(rng, 2) * rng.uniform(1, 2))[:d]
    x *= 2.0 ** rng.integers(-24, 16)
    if kind == "outlier":
        x[rng.integers(d)] *= 2.0 ** rng.integers(0, 12)
    if kind == "spread":
        x *= 2.0 ** rng.integers(-12, 1, d)
    return within_fp16(x)


def random_rows(d: int, count: int, rng: np.random.Generator) -> np.ndarray:
    return np.array([random_row(d, rng) for _ in range(count)])
