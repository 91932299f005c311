"""Bench of the fused multiply-add: operands at which aligning, cancelling and rounding meet."""

import ml_dtypes
import numpy as np

from golden.arith.float_multiply_add import float_multiply_add
from golden.arith.formats import DTYPES, from_bits, to_bits
from sim.benches.arith.datapath_bench import DatapathBench


def near_product(a: np.ndarray, b: np.ndarray, dtype: np.dtype, rng) -> np.ndarray:
    """Addends that meet the product, in a third each of three ways.

    They are the product itself, rounded, which leaves its rounding error if subtracted; or at most
    one exponent away; or from far above it, where only rounding tells of it, to far below. Half of
    them are a few places off in addition.
    """
    info, count = ml_dtypes.finfo(dtype), len(a)
    width = info.bits - 1
    product = to_bits(float_multiply_add(a, b, np.zeros(count, dtype))).astype(np.int64)
    sign, magnitude = product >> width, product & ((1 << width) - 1)
    far = rng.integers(-3 * info.nmant - 6, 2 * info.nmant + 6, count)
    distance = np.choose(rng.integers(0, 3, count), [0, rng.integers(-1, 2, count), far])
    places = rng.integers(-3, 4, count) * (1 << rng.integers(0, info.nmant + 1, count))
    places = np.where(rng.integers(0, 2, count) == 0, 0, places)
    magnitude = np.clip(magnitude + (distance << info.nmant) + places, 0, (1 << width) - 1)
    sign ^= rng.integers(0, 4, count) > 0  # mostly subtracted
    return from_bits(magnitude | sign << width, dtype)


def cancel(a: np.ndarray, b: np.ndarray, c: np.ndarray, rng) -> None:
    """In one of eight triples, `c` cancels the product but for its rounding error.

    The significand of `b` is the one of up to 64 whose error is least, or both are almost one, so
    that leading ones of all places occur.
    """
    info = ml_dtypes.finfo(a.dtype)
    chosen = np.flatnonzero(rng.integers(0, 8, len(a)) == 0)
    one, count = 1 << info.nmant, len(chosen)
    factor = rng.integers(one, 2 * one, count)
    others = rng.integers(one, 2 * one, (64, count))
    tries = 4 ** rng.integers(0, 4, count)
    short = rng.integers(0, 3, count) == 0
    factor[short], tries[short] = one + factor[short] % 4, 1
    others[0, short] = one + others[0, short] % 4
    error = factor * others % (2 * one)
    error = np.minimum(error, 2 * one - error)
    error = np.where((np.arange(64)[:, None] >= tries) | (error == 0), 2 * one, error)
    best = np.argmin(error, axis=0)
    for x, significand in ((a, factor), (b, others[best, np.arange(count)])):
        exponent = (to_bits(np.ones(1, x.dtype)) >> info.nmant) + rng.integers(-4, 5, count)
        sign = rng.integers(0, 2, count) << info.bits - 1
        to_bits(x)[chosen] = (exponent - 1 << info.nmant) + significand | sign
    product = float_multiply_add(a[chosen], b[chosen], np.zeros(count, c.dtype))
    c[chosen] = -product


def extremes(x: np.ndarray, partner: np.ndarray, rng) -> None:
    """One in 16 of `x` gets the lowest or the highest exponent and at most a single one below.

    Half of the partners of these become zero or infinite (NaN in a format without infinities).
    """
    info, count = ml_dtypes.finfo(x.dtype), len(x)
    chosen = rng.integers(0, 16, count) == 0
    fraction = (1 << rng.integers(0, info.nmant + 1, count)) % (1 << info.nmant)
    exponent = rng.integers(0, 2, count) * ((1 << info.bits - 1) - (1 << info.nmant))
    to_bits(x)[chosen] = (exponent | fraction)[chosen]
    info = ml_dtypes.finfo(partner.dtype)
    chosen &= rng.integers(0, 2, count) == 0
    infinity = int(to_bits(np.array(info.max, partner.dtype)).item()) + 1
    to_bits(partner)[chosen] = rng.choice([0, infinity], count)[chosen]


class MultiplyAddBench(DatapathBench):
    def default_vectors(self, parameters) -> int:
        return 2000

    def draw(self, parameters, trace, vectors: int, seed: int):
        values, notes = super().draw(parameters, trace, vectors, seed)
        if trace is None:
            rng = np.random.default_rng([seed, 1])
            dtype = DTYPES[parameters.sum_format or parameters.format]
            extremes(values["a"], values["b"], rng)
            extremes(values["b"], values["a"], rng)
            near = near_product(values["a"], values["b"], dtype, rng)
            chosen = rng.integers(0, 2, vectors) == 1
            bits = np.where(chosen, to_bits(near), to_bits(values["c"]))
            values["c"] = from_bits(bits, dtype)
            extremes(values["c"], values["a"], rng)
            cancel(values["a"], values["b"], values["c"], rng)
        return values, notes


bench = MultiplyAddBench(
    operands=lambda p: {"a": p.format, "b": p.format, "c": p.sum_format or p.format},
    results=lambda p: {"o": p.sum_format or p.format},
    golden=lambda p, a, b, c: {
        "o": float_multiply_add(a, b, c, flush_subnormals=p.flush_subnormals)
    },
    exact=lambda p, a, b, c: a * b + c,
)
