"""Testbench of the fused multiply-add: operands at which aligning, cancelling and rounding meet."""

import ml_dtypes
import numpy as np

from golden.arith.float_multiply_add import float_multiply_add
from golden.arith.formats import from_bits, to_bits
from sim.testbenches.arith.datapath_testbench import DatapathTestbench

DEEP, TIE, SPARSE = range(3)


def sparse(info, count, rng) -> np.ndarray:
    """Significands with a single one, or in one of four with two."""
    second = (rng.integers(0, 4, count) == 0) << rng.integers(0, info.nmant, count)
    return 1 << info.nmant | second


def any_place(info, count, rng) -> np.ndarray:
    """Numbers of at most p bits, their leading ones in all places equally often."""
    leading = 1 << rng.integers(0, info.nmant + 1, count)
    return leading | rng.integers(0, leading)


def triples(kind: np.ndarray, dtype: np.dtype, wide: np.dtype, rng) -> tuple[np.ndarray, ...]:
    """Operands of which the last p places of the exact result are chosen, p being `dtype`'s.

    Of p-bit significands, `a` is odd, so has an inverse modulo 2^p, and a b = e modulo 2^p for any
    e. With `DEEP`, the leading one of e is in any of the p places equally often, for an addend to
    cancel all above. With `TIE`, a b + c is half way between two results, or one place beside that.
    With `SPARSE`, factors have few ones. Addends have any distance from the product, from where
    only rounding tells of it to where only rounding tells of them; half are sparse, some zero. In a
    quarter of all, a factor is subnormal, of q places, and the modulus is 2^q. Half of the other
    exponents are so low that results can be subnormal, the others are any.
    """
    info, limits, count = ml_dtypes.finfo(dtype), ml_dtypes.finfo(wide), len(kind)
    one, low, high = 1 << info.nmant, int(info.minexp), int(info.maxexp) - 1
    a = rng.integers(one, 2 * one, count) | 1
    inverse = a
    for _ in range(4):  # Newton's iteration, from 3 places on: 6, 12, 24, 48
        inverse = inverse * (2 - a * inverse)
    c = rng.integers(1 << limits.nmant, 2 << limits.nmant, count)
    c = np.choose(rng.choice(3, count, p=[1 / 8, 1 / 2, 3 / 8]), [0, sparse(limits, count, rng), c])
    c *= rng.choice([-1, 1], count)
    # Places are counted from the product's last.
    place = rng.integers(-3 * limits.nmant - 6, 2 * info.nmant + 6, count)
    small = rng.integers(0, 4, count) == 0
    size = np.where(small, rng.integers(1, info.nmant + 2, count), info.nmant + 1)
    first = np.maximum(info.nmant + size - 1 + rng.integers(0, 2, count), place + limits.nmant)
    half = 1 << np.clip(first - limits.nmant - 1, 0, info.nmant)
    aligned = c << np.clip(place, 0, info.nmant + 1) >> np.clip(-place, 0, 63)
    tie = half + rng.choice([-1, 0, 0, 1], count) - aligned
    e = np.where(kind == TIE, tie, any_place(info, count, rng))
    b = e * inverse % (1 << size)
    b, c = np.where((b < one) & ~small, [2 * one - b, -c], [b, c])  # leaves -e
    b = np.minimum(b, 2 * one - 1)
    lowest = max(int(limits.minexp) - 2 * limits.nmant - 4, 2 * low)
    span = min(int(limits.maxexp), 2 * high) + 1 - lowest
    exponent = lowest + rng.integers(0, rng.choice([span, min(span, 4 * limits.nmant)], count))
    power = rng.integers(np.maximum(exponent - high, low), np.minimum(exponent - low, high) + 1)
    a, b = np.where(kind == SPARSE, sparse(info, (2, count), rng), [a, b])
    power = np.where(small, rng.integers(low, high + 1, count), power)
    exponent = np.where(small, power + low, exponent)
    sign = rng.choice([-1, 1], (2, count))
    a, b, c = np.ldexp(
        [a * sign[0], b * sign[1], c * sign[0] * sign[1]],
        [power - info.nmant, exponent - power - info.nmant, exponent - 2 * info.nmant + place],
    )
    a, b = np.where(rng.integers(0, 2, count) == 0, [a, b], [b, a])
    with np.errstate(over="ignore"):
        return a.astype(dtype), b.astype(dtype), c.astype(wide)


def cancelling(a: np.ndarray, b: np.ndarray, dtype: np.dtype, rng) -> np.ndarray:
    """The product, rounded, which leaves its rounding error if subtracted, as most are.

    A quarter of them differ from that in any place, three quarters of those without such error.
    """
    info, count = ml_dtypes.finfo(dtype), len(a)
    width = info.bits - 1
    product = float_multiply_add(a, b, np.zeros(count, dtype))
    exact = float_multiply_add(a, b, -product) == 0
    bits = to_bits(product).astype(np.int64)
    change = rng.choice([-1, 1], count) * any_place(info, count, rng)
    change *= rng.integers(0, 4, count) < np.where(exact, 3, 1)
    magnitude = np.clip((bits & ((1 << width) - 1)) + change, 0, (1 << width) - 1)
    sign = bits >> width ^ (rng.integers(0, 8, count) > 0)
    return from_bits(magnitude | sign << width, dtype)


def extremes(x: np.ndarray, chosen: np.ndarray, rng) -> np.ndarray:
    """What is chosen of `x` becomes, in equal parts, zero, infinity (NaN in a format without), or
    gets the lowest or the highest exponent and at most a single one below."""
    info, count = ml_dtypes.finfo(x.dtype), len(x)
    infinity = int(to_bits(np.array(info.max, x.dtype)).item()) + 1
    fraction = (1 << rng.integers(0, info.nmant + 1, count)) % (1 << info.nmant)
    highest = (1 << info.bits - 1) - (1 << info.nmant)
    bits = np.choose(rng.integers(0, 4, count), [0, infinity, fraction, highest | fraction])
    return from_bits(np.where(chosen, bits, to_bits(x)), x.dtype)


def lowest(dtype: np.dtype, wide: np.dtype, flush: bool, count: int, rng) -> list[np.ndarray]:
    """Products as low as the factors' places allow, and addends of the other sign just below."""
    info = ml_dtypes.finfo(dtype)
    least = info.minexp - (0 if flush else info.nmant)
    power = rng.integers(info.minexp, info.maxexp, count)
    below = rng.integers(0, ml_dtypes.finfo(wide).nmant + 5, count)
    sign = rng.choice([-1.0, 1.0], (2, count))
    a, b = np.ldexp(sign[0], np.full(count, least)), np.ldexp(sign[1], power)
    c = -sign[0] * sign[1] * np.ldexp(rng.random(count) + 1, least + power - below)
    return [a.astype(dtype), b.astype(dtype), c.astype(wide)]


class MultiplyAddTestbench(DatapathTestbench):
    """Of the operands, an eighth are any; in a quarter of the operations some are extremes."""

    def default_vectors(self, parameters) -> int:
        return 2000

    def draw(self, parameters, trace, vectors: int, seed: int):
        values, notes = super().draw(parameters, trace, vectors, seed)
        if trace is None:
            rng = np.random.default_rng([seed, 1])
            kind = rng.choice(3, vectors, p=[3 / 8, 3 / 8, 1 / 4])
            any_value = rng.integers(0, 8, vectors) == 0
            extreme = rng.integers(0, 4, vectors) == 0
            cancels = (kind == DEEP) | (kind == SPARSE) & (rng.integers(0, 2, vectors) == 0)
            drawn = triples(kind, values["a"].dtype, values["c"].dtype, rng)
            for port, x, share in zip("abc", drawn, (2, 2, 4), strict=True):
                x = np.where(any_value, values[port], x)
                if port == "c":
                    x = np.where(cancels, cancelling(values["a"], values["b"], x.dtype, rng), x)
                chosen = extreme & (rng.integers(0, share, vectors) == 0)
                values[port] = extremes(x, chosen, rng)
            low = rng.integers(0, 16, vectors) == 0
            kinds = (values["a"].dtype, values["c"].dtype, parameters.flush_subnormals)
            for port, x in zip("abc", lowest(*kinds, vectors, rng), strict=True):
                values[port] = np.where(low, x, values[port])
        return values, notes


testbench = MultiplyAddTestbench(
    operands=lambda p: {"a": p.format, "b": p.format, "c": p.sum_format or p.format},
    results=lambda p: {"o": p.sum_format or p.format},
    golden=lambda p, a, b, c: {
        "o": float_multiply_add(a, b, c, flush_subnormals=p.flush_subnormals)
    },
    exact=lambda p, a, b, c: a * b + c,
)
