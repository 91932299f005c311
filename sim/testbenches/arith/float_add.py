"""Testbench of the adder."""

from collections.abc import Callable, Iterable

import ml_dtypes
import numpy as np
from amaranth.hdl import unsigned

from golden.arith.float_add import float_add
from golden.arith.formats import from_bits, to_bits
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.strategies import picks, sometimes


class FloatAddTestbench(DatapathTestbench):
    """Half of the pairs are at limits, cancel in their upper bits, or are close to ties."""

    def draw(self, parameters, trace, vectors, seed):
        values, notes = super().draw(parameters, trace, vectors, seed)
        if trace is None:
            rng = np.random.default_rng(seed)
            kind = picks(rng, vectors, {"any": len(PAIRS)} | dict.fromkeys(PAIRS, 1))
            for name, draw in PAIRS.items():
                pair = draw(values["a"].dtype, vectors, rng)
                for port, drawn in zip("ab", pair, strict=True):
                    values[port] = np.where(kind == name, drawn, values[port])
        return values, notes


def _across_a_power(dtype, count, rng) -> tuple[np.ndarray, np.ndarray]:
    """Powers of two, and numbers at most three units below them, each of any sign."""
    info = ml_dtypes.finfo(dtype)
    exponents = rng.integers(1, (1 << info.bits - 1 - info.nmant) - 1, count)
    power = exponents << info.nmant
    below = power - rng.integers(1, 4, count)
    signs = rng.integers(0, 2, (2, count)) << info.bits - 1
    return from_bits(power | signs[0], dtype), from_bits(below | signs[1], dtype)


def _cancelling(dtype, count, rng) -> tuple[np.ndarray, np.ndarray]:
    """Numbers with the same upper bits, most of them with differences near the subnormals."""
    info = ml_dtypes.finfo(dtype)
    exponents = (1 << info.bits - 1 - info.nmant) - 1
    low = rng.integers(0, min(info.nmant + 4, exponents), count)
    exponent = np.where(sometimes(rng, 3 / 4, count), low, rng.integers(0, exponents, count))
    a = exponent << info.nmant | rng.integers(0, 1 << info.nmant, count)
    span = rng.integers(1, info.nmant + 2, count)
    b = a ^ rng.integers(0, 1 << info.nmant + 1, count) >> info.nmant + 1 - span
    signs = rng.integers(0, 2, (2, count)) << info.bits - 1
    return from_bits(a | signs[0], dtype), from_bits(b | signs[1], dtype)


def _limits(dtype, count, rng) -> np.ndarray:
    """Pairs of zeros, infinities, NaNs with one bit set, and the numbers next to them."""
    info = ml_dtypes.finfo(dtype)
    with np.errstate(all="ignore"):
        infinity = int(to_bits(np.array([np.inf]).astype(dtype))[0])
    normal = 1 << info.nmant
    fixed = [0, 1, normal - 1, normal, infinity - 1, infinity, infinity]
    nan = infinity | 1 << rng.integers(0, info.nmant, (2, count))
    kind = rng.integers(0, len(fixed) + 2, (2, count))
    magnitude = np.where(kind < len(fixed), np.take(fixed, kind, mode="clip"), nan)
    return from_bits(magnitude | rng.integers(0, 2, (2, count)) << info.bits - 1, dtype)


def _few_bits(dtype, count, rng) -> tuple[np.ndarray, np.ndarray]:
    """Any number, and a smaller one, at any distance, with at most two ones in its fraction."""
    info = ml_dtypes.finfo(dtype)
    a = rng.integers(0, 1 << info.bits - 1, count)
    distance = rng.integers(0, info.nmant + 4, count)
    exponent = np.maximum((a >> info.nmant) - distance, 0)
    bits = 1 << rng.integers(0, info.nmant + 1, (2, count))
    fraction = (bits[0] | bits[1]) & (1 << info.nmant) - 1
    signs = rng.integers(0, 2, (2, count)) << info.bits - 1
    b = exponent << info.nmant | fraction
    return from_bits(a | signs[0], dtype), from_bits(b | signs[1], dtype)


PAIRS: dict[str, Callable[..., Iterable[np.ndarray]]] = {
    "across a power of two": _across_a_power,
    "cancelling": _cancelling,
    "limits": _limits,
    "few bits": _few_bits,
}


def _golden(parameters, a, b, subtract):
    total = float_add(a, b, subtract != 0, flush_subnormals=parameters.flush_subnormals)
    return {"o": total}


testbench = FloatAddTestbench(
    operands=lambda p: {"a": p.format, "b": p.format, "subtract": unsigned(1)},
    results=lambda p: {"o": p.format},
    golden=_golden,
)
