"""Testbench of the fused multiply-add: operands that exercise alignment and rounding together."""

import ml_dtypes
import numpy as np

from golden.arith.float_multiply_add import float_multiply_add
from golden.arith.formats import from_bits, to_bits
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.strategies import mixture, picks, signs, sometimes

KINDS = {"deep": 3 / 8, "tie": 3 / 8, "sparse": 1 / 4}
"""Kinds of :func:`triples`, and their shares."""


def sparse(info, count, rng) -> np.ndarray:
    """Significands with a single one, or (a quarter of them) two."""
    second = sometimes(rng, 1 / 4, count) << rng.integers(0, info.nmant, count)
    return 1 << info.nmant | second


def any_length(info, count, rng) -> np.ndarray:
    """Integers of 1 to p bits, each length with the same probability."""
    leading = 1 << rng.integers(0, info.nmant + 1, count)
    return leading | rng.integers(0, leading)


def triples(kind: np.ndarray, dtype: np.dtype, wide: np.dtype, rng) -> tuple[np.ndarray, ...]:
    """Operands (a, b, c) with chosen low bits of the exact result.

    kind
        Array of names. ``deep``: the low p bits of a b, where p is the precision of `dtype`, are
        a number of any length, so that an addend that cancels the bits above leaves that. ``tie``:
        a b + c is half way between two results, or one unit next to that. ``sparse``: factors with
        few ones.

    The significand of `a` is odd, so it has an inverse modulo 2^p, and for any e there is a b with
    a b = e modulo 2^p. Addends have any distance from the product, up to where either only affects
    the rounding of the other; half of them are sparse, some are zero. In a quarter of the triples
    one factor is subnormal, of q bits, and the modulus is 2^q. Half of the other exponents are so
    low that results can be subnormal, the others are any.
    """
    info, limits, count = ml_dtypes.finfo(dtype), ml_dtypes.finfo(wide), len(kind)
    one, low, high = 1 << info.nmant, int(info.minexp), int(info.maxexp) - 1
    a = rng.integers(one, 2 * one, count) | 1
    inverse = a
    for _ in range(4):  # Newton's iteration doubles the correct bits: 3, 6, 12, 24, 48
        inverse = inverse * (2 - a * inverse)
    c = rng.integers(1 << limits.nmant, 2 << limits.nmant, count)
    addends = {"zero": (1, 0), "sparse": (4, sparse(limits, count, rng)), "any": (3, c)}
    c = mixture(rng, count, addends) * signs(rng, count)
    # Weight of the addend's lowest bit, where the product's is 0.
    place = rng.integers(-3 * limits.nmant - 6, 2 * info.nmant + 6, count)
    small = sometimes(rng, 1 / 4, count)
    size = np.where(small, rng.integers(1, info.nmant + 2, count), info.nmant + 1)
    first = np.maximum(info.nmant + size - 1 + rng.integers(0, 2, count), place + limits.nmant)
    half = 1 << np.clip(first - limits.nmant - 1, 0, info.nmant)
    aligned = c << np.clip(place, 0, info.nmant + 1) >> np.clip(-place, 0, 63)
    tie = half + rng.choice([-1, 0, 0, 1], count) - aligned
    e = np.where(kind == "tie", tie, any_length(info, count, rng))
    b = e * inverse % (1 << size)
    b, c = np.where((b < one) & ~small, [2 * one - b, -c], [b, c])  # a b = -e instead
    b = np.minimum(b, 2 * one - 1)
    lowest = max(int(limits.minexp) - 2 * limits.nmant - 4, 2 * low)
    span = min(int(limits.maxexp), 2 * high) + 1 - lowest
    exponent = lowest + rng.integers(0, rng.choice([span, min(span, 4 * limits.nmant)], count))
    power = rng.integers(np.maximum(exponent - high, low), np.minimum(exponent - low, high) + 1)
    a, b = np.where(kind == "sparse", sparse(info, (2, count), rng), [a, b])
    power = np.where(small, rng.integers(low, high + 1, count), power)
    exponent = np.where(small, power + low, exponent)
    sign = signs(rng, (2, count))
    a, b, c = np.ldexp(
        [a * sign[0], b * sign[1], c * sign[0] * sign[1]],
        [power - info.nmant, exponent - power - info.nmant, exponent - 2 * info.nmant + place],
    )
    a, b = np.where(sometimes(rng, 0.5, count), [a, b], [b, a])
    with np.errstate(over="ignore"):
        return a.astype(dtype), b.astype(dtype), c.astype(wide)


def cancelling(a: np.ndarray, b: np.ndarray, dtype: np.dtype, rng) -> np.ndarray:
    """Addends that cancel: the rounded product, mostly negated, so that its rounding error is left.

    A quarter of them differ from that in any bit, or three quarters where the product is exact.
    """
    info, count = ml_dtypes.finfo(dtype), len(a)
    width = info.bits - 1
    product = float_multiply_add(a, b, np.zeros(count, dtype))
    exact = float_multiply_add(a, b, -product) == 0
    bits = to_bits(product).astype(np.int64)
    change = signs(rng, count) * any_length(info, count, rng)
    change *= sometimes(rng, np.where(exact, 3 / 4, 1 / 4), count)
    magnitude = np.clip((bits & ((1 << width) - 1)) + change, 0, (1 << width) - 1)
    sign = bits >> width ^ sometimes(rng, 7 / 8, count)
    return from_bits(magnitude | sign << width, dtype)


def extremes(x: np.ndarray, chosen: np.ndarray, rng) -> np.ndarray:
    """`x` with extreme values of its signs where `chosen`.

    In equal parts zero, infinity (NaN in a format without infinities), and the lowest or the
    highest exponent with at most a single one in the fraction.
    """
    info, count = ml_dtypes.finfo(x.dtype), len(x)
    infinity = int(to_bits(np.array(info.max, x.dtype)).item()) + 1
    fraction = (1 << rng.integers(0, info.nmant + 1, count)) % (1 << info.nmant)
    highest = (1 << info.bits - 1) - (1 << info.nmant)
    values = {
        "zero": (1, 0),
        "infinity": (1, infinity),
        "lowest": (1, fraction),
        "highest": (1, highest | fraction),
    }
    bits = mixture(rng, count, values)
    return from_bits(np.where(chosen, bits, to_bits(x)), x.dtype)


def lowest(dtype: np.dtype, wide: np.dtype, flush: bool, count: int, rng) -> list[np.ndarray]:
    """The smallest factor times any power of two, and addends of the other sign just below."""
    info = ml_dtypes.finfo(dtype)
    least = info.minexp - (0 if flush else info.nmant)
    power = rng.integers(info.minexp, info.maxexp, count)
    below = rng.integers(0, ml_dtypes.finfo(wide).nmant + 5, count)
    sign = signs(rng, (2, count))
    a, b = np.ldexp(sign[0], np.full(count, least)), np.ldexp(sign[1], power)
    c = -sign[0] * sign[1] * np.ldexp(rng.random(count) + 1, least + power - below)
    return [a.astype(dtype), b.astype(dtype), c.astype(wide)]


class MultiplyAddTestbench(DatapathTestbench):
    """An eighth of the triples are any numbers; a quarter have extremes among the operands."""

    def default_vectors(self, parameters) -> int:
        return 2000

    def draw(self, parameters, trace, vectors: int, seed: int):
        values, notes = super().draw(parameters, trace, vectors, seed)
        if trace is None:
            rng = np.random.default_rng([seed, 1])
            kind = picks(rng, vectors, KINDS)
            any_value = sometimes(rng, 1 / 8, vectors)
            extreme = sometimes(rng, 1 / 4, vectors)
            cancels = (kind == "deep") | (kind == "sparse") & sometimes(rng, 0.5, vectors)
            drawn = triples(kind, values["a"].dtype, values["c"].dtype, rng)
            for port, x, share in zip("abc", drawn, (1 / 2, 1 / 2, 1 / 4), strict=True):
                x = np.where(any_value, values[port], x)
                if port == "c":
                    x = np.where(cancels, cancelling(values["a"], values["b"], x.dtype, rng), x)
                chosen = extreme & sometimes(rng, share, vectors)
                values[port] = extremes(x, chosen, rng)
            low = sometimes(rng, 1 / 16, vectors)
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
)
