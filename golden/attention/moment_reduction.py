"""Mean and inverse standard deviation; see :mod:`hw.attention.moment_reduction`."""

from dataclasses import dataclass

import numpy as np

from golden.arith.fixed_sum import units
from golden.arith.float_add import float_add
from golden.arith.float_multiply import float_multiply
from golden.arith.formats import to_bits
from golden.arith.inverse_square_root import double_root
from golden.arith.wide_exponent import INVERSE_ROOT


@dataclass(frozen=True)
class Moments:
    """Moments of a vector: ``mean`` in float32; 1 / std is inverse_std 2^(exponent - 14)."""

    mean: np.float32
    inverse_std: int
    exponent: int
    undefined: bool


def moment_reduction(x: np.ndarray, inverse: np.float32, eps: np.float32, rms: bool) -> Moments:
    """Of ``float16[n]``; `inverse` is 1 / n. With `rms` the mean is 0."""
    mean, variance = mean_and_variance(x, inverse, rms)
    variance_eps = int(to_bits(_add(variance, eps)))
    field = variance_eps >> 23 & 0xFF
    undefined = variance_eps >> 31 == 1 or field in (0, 255) or not np.isfinite(x).all()
    # The table's index: the exponent's parity and 12 bits of the fraction.
    index = (~field & 1) << 12 | variance_eps >> 11 & 0xFFF
    inverse_std = int(INVERSE_ROOT(double_root, np.array(index)))
    return Moments(mean, inverse_std, 63 - (field + 1 >> 1), undefined)


def mean_and_variance(
    x: np.ndarray, inverse: np.float32, rms: bool
) -> tuple[np.float32, np.float32]:
    """In float32; a variance below 0 becomes 0."""
    integers = units(x).astype(np.int64).tolist()
    elements = rounded(sum(integers), -24)
    squares = rounded(sum(n * n for n in integers), -48)
    mean = np.float32(0) if rms else _multiply(elements, inverse)
    variance = _add(_multiply(squares, inverse), -_multiply(mean, mean))
    return mean, np.float32(0) if np.signbit(variance) else variance


def rounded(value: int, unit: int) -> np.float32:
    """value 2^unit rounded once, to nearest even."""
    magnitude = abs(value)
    excess = max(magnitude.bit_length() - 24, 0)
    kept, rest = magnitude >> excess, magnitude & ((1 << excess) - 1)
    half = 1 << excess >> 1
    kept += excess > 0 and (rest > half or (rest == half and kept & 1 == 1))
    return np.float32(np.ldexp(float(-kept if value < 0 else kept), unit + excess))


def _multiply(a, b) -> np.float32:
    return float_multiply(np.array([a]), np.array([b]), flush_subnormals=True)[0]


def _add(a, b) -> np.float32:
    return float_add(np.array([a]), np.array([b]), flush_subnormals=True)[0]
