"""Floating-point numbers taken apart into the integers that hardware works on."""

import dataclasses

import ml_dtypes
import numpy as np

from golden.arith.formats import DTYPES, from_bits, to_bits


@dataclasses.dataclass(frozen=True)
class Fields:
    """Finite numbers are (-1)^negative * significand * 2^(exponent - mantissa bits).

    exponent, significand
        As ``int64``. The significand of a subnormal number has a zero as its highest bit.
    """

    negative: np.ndarray
    exponent: np.ndarray
    significand: np.ndarray

    def normalised(self, bits: int) -> "Fields":
        """The same numbers with a significand of `bits` + 1 bits whose highest is set, or zero."""
        length = np.frexp(self.significand.astype(np.float64))[1]
        left = np.where(self.significand == 0, 0, bits + 1 - length)
        return Fields(self.negative, self.exponent - left, self.significand << left)


def split(x: np.ndarray) -> Fields:
    info = ml_dtypes.finfo(x.dtype)
    bits = to_bits(x).astype(np.int64)
    magnitude = bits & ((1 << (info.bits - 1)) - 1)
    field, mantissa = magnitude >> info.nmant, magnitude & ((1 << info.nmant) - 1)
    hidden = (field != 0).astype(np.int64)
    exponent = np.maximum(field, 1) + int(info.minexp) - 1
    return Fields(bits != magnitude, exponent, mantissa | hidden << info.nmant)


def with_sign(magnitudes: np.ndarray, negative: np.ndarray, dtype) -> np.ndarray:
    """Values of bit patterns without a sign, and their signs."""
    return from_bits(
        magnitudes | negative.astype(np.int64) << (ml_dtypes.finfo(dtype).bits - 1), dtype
    )


def overflow(dtype) -> int:
    """Bits of what is too large: plus infinity, or NaN in a format without."""
    return to_bits(np.array(ml_dtypes.finfo(dtype).max, dtype)).item() + 1


def is_infinite(x: np.ndarray) -> np.ndarray:
    """Which values are infinite, judged by their bits: no NaN raises a warning."""
    bits = to_bits(x).astype(np.int64)
    magnitude = bits & ((1 << (ml_dtypes.finfo(x.dtype).bits - 1)) - 1)
    return (magnitude == overflow(x.dtype)) & (x.dtype != DTYPES["fp8_e4m3"])
