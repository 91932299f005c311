"""Operands for arithmetic units: corner cases, random bits, related pairs, values of a trace."""

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from golden.arith.formats import DTYPES, from_bits, quiet_nan, to_bits
from sim.testbenches.operands import vectors_by_name
from sim.testbenches.strategies import every_magnitude, picks, signs, sometimes

if TYPE_CHECKING:
    from golden.trace import Trace


def corners(dtype) -> np.ndarray:
    """Corner values of a format, both signs: around each power of two, limits, infinities, NaN."""
    info = ml_dtypes.finfo(dtype)
    fractions = np.array([0, 1, 2, 3], np.int64)
    fractions = np.concatenate([fractions, (1 << info.nmant - 1) + fractions - 1])
    fractions = np.concatenate([fractions, (1 << info.nmant) - 1 - fractions[:3]])
    exponents = np.arange(1 << (info.bits - 1 - info.nmant), dtype=np.int64)
    kept = np.unique(fractions & ((1 << info.nmant) - 1))
    magnitudes = (exponents[:, None] << info.nmant | kept).ravel()
    magnitudes = np.append(magnitudes, quiet_nan(dtype))
    return from_bits(np.concatenate([magnitudes, magnitudes | 1 << (info.bits - 1)]), dtype)


def random_floats(name: str, count: int, others: list[np.ndarray], rng) -> np.ndarray:
    """`count` values of a format: corners, random bits, and values close to another operand.

    others
        Operands drawn before, of any format. A close value has the bits of one of the same format,
        plus or minus a few units of any bit, and any sign.
    """
    dtype = DTYPES[name]
    info = ml_dtypes.finfo(dtype)
    span = 1 << info.bits
    bits = rng.integers(0, span, count, dtype=np.int64)
    kind = picks(rng, count, {"corner": 1, "close": 1, "random": 1})
    edge = to_bits(corners(dtype)).astype(np.int64)
    bits = np.where(kind == "corner", rng.choice(edge, count), bits)
    same = [other for other in others if other.dtype == dtype]
    if same:
        near = to_bits(same[rng.integers(len(same))]).astype(np.int64)
        nudge = rng.integers(-3, 4, count) * (1 << rng.integers(0, info.nmant + 1, count))
        close = near + nudge ^ rng.integers(0, 2, count) << (info.bits - 1)
        bits = np.where(kind == "close", close % span, bits)
    return from_bits(bits, dtype)


def random_integers(bits: int, signed: bool, count: int, rng) -> np.ndarray:
    """``int64[count]``: limits, values of every magnitude, both signs if signed."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    values = signs(rng, count) * every_magnitude(rng, bits, count)
    edges = np.array([low, low + 1, -1, 0, 1, high - 1, high])
    values = np.where(sometimes(rng, 1 / 4, count), rng.choice(edges, count), values)
    return np.where((values < low) | (values > high), values & high, values)


def trace_values(trace: "Trace", count: int, operand: int) -> tuple[np.ndarray, str]:
    """``float32[count]`` of a trace's activations or keys, a different part for each operand.

    Also returns a description of the part.
    """
    arrays = vectors_by_name(trace)
    name = list(arrays)[operand % len(arrays)]
    flat = np.asarray(arrays[name], np.float32).ravel()
    start = operand * 977
    fitted = "repeated" if len(flat) < count else f"cut to {count} values"
    return np.resize(np.roll(flat, -start), count), f"{name}, {fitted},"


def cast(values: np.ndarray, name: str) -> np.ndarray:
    """`values` in a format, rounded as NumPy does."""
    with np.errstate(over="ignore"):
        return values.astype(DTYPES[name])
