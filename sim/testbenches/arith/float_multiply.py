"""Testbench of the multiplier."""

import ml_dtypes
import numpy as np

from golden.arith.float_multiply import float_multiply
from golden.arith.formats import from_bits, to_bits
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.strategies import mixture, picks, sometimes


class FloatMultiplyTestbench(DatapathTestbench):
    """Two thirds of the pairs are drawn by :data:`PAIRS`, with any order and signs."""

    def draw(self, parameters, trace, vectors, seed):
        values, notes = super().draw(parameters, trace, vectors, seed)
        if trace is None:
            rng = np.random.default_rng(seed)
            weights = {name: weight for name, (weight, _) in PAIRS.items()}
            kind = picks(rng, vectors, {"any": 3} | weights)
            for name, (_, draw) in PAIRS.items():
                pair = np.stack(draw(values["a"].dtype, vectors, rng))
                pair = np.where(rng.integers(0, 2, vectors), pair, pair[::-1])
                pair |= rng.integers(0, 2, (2, vectors)) << 8 * values["a"].dtype.itemsize - 1
                for port, drawn in zip("ab", pair, strict=True):
                    drawn = from_bits(drawn, values[port].dtype)
                    values[port] = np.where(kind == name, drawn, values[port])
        return values, notes


def _fields(dtype) -> tuple[int, int, int]:
    """Bits of the fraction, the highest exponent field, and the bias."""
    info = ml_dtypes.finfo(dtype)
    exponent = info.bits - 1 - info.nmant
    return info.nmant, (1 << exponent) - 1, (1 << exponent - 1) - 1


def _subnormal(dtype, count, rng):
    """Subnormal numbers with their leading one in any position, and numbers from 1 on."""
    mantissa, top, bias = _fields(dtype)
    small = rng.integers(0, 1 << mantissa, count) >> rng.integers(0, mantissa, count)
    return small, rng.integers(bias << mantissa, top << mantissa, count)


def _limits(dtype, count, rng):
    """Zeros, infinities, NaNs with one bit set, and the numbers next to them."""
    mantissa, top, bias = _fields(dtype)
    with np.errstate(all="ignore"):
        infinity = int(to_bits(np.array([np.inf]).astype(dtype))[0])
    normal = 1 << mantissa
    fixed = [0, 0, 1, normal - 1, normal, bias << mantissa, infinity - 1, infinity, infinity]
    other = 1 << rng.integers(0, mantissa, (2, count))
    choice = rng.integers(0, len(fixed) + 4, (2, count))
    number = np.take(fixed, choice, mode="clip")
    number = np.where(choice >= len(fixed), other, number)
    return np.where(choice >= len(fixed) + 2, top << mantissa | other, number)


def _ends(dtype, count, rng):
    """Products near the smallest subnormal, smallest normal or largest number, or between."""
    mantissa, top, bias = _fields(dtype)
    smallest = rng.integers(-mantissa - 4, 3, count)
    largest = top + rng.integers(-2, 2, count)
    anywhere = rng.integers(1, top, count)
    ends = {"smallest": (2, smallest), "largest": (1, largest), "anywhere": (1, anywhere)}
    total = bias + mixture(rng, count, ends)
    low, high = np.maximum(total - top, 1), np.minimum(total - 1, top)
    first = rng.integers(low, np.maximum(high, low) + 1)
    exponents = np.clip([first, total - first], 0, top)
    fractions = rng.integers(0, 1 << mantissa, (2, count))
    long_runs = (1 << mantissa) - 1 - (fractions >> rng.integers(0, mantissa, (2, count)))
    fractions = np.where(sometimes(rng, 0.5, count), long_runs, fractions)
    return exponents << mantissa | fractions


def _below_powers(dtype, count, rng):
    """Products of a power of two or about a unit in the last place below.

    One factor is of any size, often subnormal, the other one is normal.
    """
    mantissa, top, bias = _fields(dtype)
    length = rng.integers(1, mantissa + 2, count)
    significand = rng.integers(1 << length - 1, 1 << length)
    other = (1 << length + mantissa) // significand & (1 << mantissa) - 1
    scale = np.where(length > mantissa, rng.integers(0, top - 1, count), 0)
    return scale * (1 << mantissa) + significand, rng.integers(1, top, count) << mantissa | other


def _few_bits(dtype, count, rng):
    """Numbers with at most three ones in their fractions, one or both of medium size: ties."""
    mantissa, top, bias = _fields(dtype)
    bits = 1 << rng.integers(0, mantissa + 1, (3, 2, count))
    fractions = np.bitwise_or.reduce(bits) & (1 << mantissa) - 1
    medium = rng.integers(bias // 2, bias + bias // 2 + 1, (2, count))
    second = {
        "medium": (2, medium[1]),
        "small": (1, rng.integers(0, bias // 2, count)),
        "subnormal": (1, 0),
    }
    medium[1] = mixture(rng, count, second)
    return medium << mantissa | fractions


PAIRS = {
    "subnormal": (1, _subnormal),
    "limits": (1, _limits),
    "ends of the range": (1, _ends),
    "below powers of two": (1, _below_powers),
    "few bits": (2, _few_bits),
}
"""``{name: (weight, function)}``."""

testbench = FloatMultiplyTestbench(
    operands=lambda p: {"a": p.format, "b": p.format},
    results=lambda p: {"o": p.format},
    golden=lambda p, a, b: {"o": float_multiply(a, b, flush_subnormals=p.flush_subnormals)},
)
