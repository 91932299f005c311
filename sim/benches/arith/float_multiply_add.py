"""Bench of the fused multiply-add: operands at which aligning, cancelling and rounding meet."""

import ml_dtypes
import numpy as np

from golden.arith.float_multiply_add import float_multiply_add
from golden.arith.formats import from_bits, to_bits
from sim.benches.arith.datapath_bench import DatapathBench


def sparse(info, count: int, rng) -> np.ndarray:
    """Significands with one or two ones."""
    second = rng.integers(0, 2, count) << rng.integers(0, info.nmant, count)
    return 1 << info.nmant | second


def factors(dtype: np.dtype, wide: np.dtype, count: int, rng) -> list[np.ndarray]:
    """Pairs of which rounding the product leaves what is drawn, at any exponent of the result.

    Of p-bit significands, `a` is odd, so has an inverse modulo 2^p, and a b = e modulo 2^p for any
    e. Half of these have their leading one in any of the p places equally often, to be left where
    an addend cancels all above; a quarter of them are ties. The other pairs are sparse, so that a
    product can be a power of two. Half of the exponents are so low that the result can be
    subnormal, the others are any.
    """
    info, limits = ml_dtypes.finfo(dtype), ml_dtypes.finfo(wide)
    one, low, high = 1 << info.nmant, int(info.minexp), int(info.maxexp) - 1
    a = rng.integers(one, 2 * one, count) | 1
    inverse = a
    for _ in range(4):  # Newton's iteration, from 3 places on: 6, 12, 24, 48
        inverse = inverse * (2 - a * inverse)
    kind = rng.integers(0, 4, count)
    tie = one >> rng.integers(0, 2, count)
    leading = 1 << rng.integers(0, info.nmant + 1, count)
    e = np.where(kind == 0, tie, leading | rng.integers(0, one, count) % leading)
    b = e * inverse % (2 * one)
    b = np.where(b < one, 2 * one - b, b)  # leaves -e
    lowest = max(int(limits.minexp) - 2 * limits.nmant, 2 * low)
    span = min(int(limits.maxexp), 2 * high) + 1 - lowest
    spans = rng.choice([span, min(span, 4 * limits.nmant)], count)
    exponent = lowest + rng.integers(0, spans)
    first = rng.integers(np.maximum(exponent - high, low), np.minimum(exponent - low, high) + 1)
    pair = []
    for significand, power in ((a, first), (b, exponent - first)):
        significand = np.where(kind == 1, sparse(info, count, rng), significand)
        sign = rng.integers(0, 2, count) << info.bits - 1
        pair.append(from_bits((power - low << info.nmant) + significand | sign, dtype))
    return pair


def meeting(a: np.ndarray, b: np.ndarray, dtype: np.dtype, rng) -> np.ndarray:
    """Addends that meet the product, in a third each of three ways.

    They are the product itself, rounded, which leaves its rounding error if subtracted; or differ
    from that in one place; or have any distance from far above it, where only rounding tells of
    it, to far below, and are sparse, so that a single bit decides about rounding.
    """
    info, count = ml_dtypes.finfo(dtype), len(a)
    width, one = info.bits - 1, 1 << info.nmant
    product = to_bits(float_multiply_add(a, b, np.zeros(count, dtype))).astype(np.int64)
    sign, magnitude = product >> width, product & ((1 << width) - 1)
    place = rng.choice([-1, 1], count) << rng.integers(0, info.nmant + 1, count)
    distance = rng.integers(-3 * info.nmant - 6, 2 * info.nmant + 6, count)
    far = (magnitude & -one) + (distance - 1 << info.nmant) + sparse(info, count, rng)
    kind = rng.integers(0, 3, count)
    magnitude = np.choose(kind, [magnitude, magnitude + place, far])
    sign ^= rng.integers(0, 4, count) > 0  # mostly subtracted
    return from_bits(np.clip(magnitude, 0, (1 << width) - 1) | sign << width, dtype)


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
            narrow, wide = values["a"].dtype, values["c"].dtype
            kind = rng.integers(0, 4, vectors)
            pair = factors(narrow, wide, vectors, rng)
            for port, drawn in zip("ab", pair, strict=True):
                values[port] = np.where(kind < 2, drawn, values[port])
            extremes(values["a"], values["b"], rng)
            extremes(values["b"], values["a"], rng)
            addend = meeting(values["a"], values["b"], wide, rng)
            values["c"] = np.where(kind < 3, addend, values["c"])
            extremes(values["c"], values["a"], rng)
        return values, notes


bench = MultiplyAddBench(
    operands=lambda p: {"a": p.format, "b": p.format, "c": p.sum_format or p.format},
    results=lambda p: {"o": p.sum_format or p.format},
    golden=lambda p, a, b, c: {
        "o": float_multiply_add(a, b, c, flush_subnormals=p.flush_subnormals)
    },
    exact=lambda p, a, b, c: a * b + c,
)
