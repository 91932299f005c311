"""Fields of floating-point numbers, as integers."""

import dataclasses

import ml_dtypes
import numpy as np

from golden.arith.formats import DTYPES, from_bits, to_bits


@dataclasses.dataclass(frozen=True)
class Fields:
    """Finite numbers are (-1)^negative * significand * 2^(exponent - mantissa bits).

    exponent, significand
        ``int64``. The significand includes the hidden bit, which is 0 in subnormal numbers.
    """

    negative: np.ndarray
    exponent: np.ndarray
    significand: np.ndarray

    def normalised(self, bits: int) -> "Fields":
        """The same numbers with normalised significands of `bits` + 1 bits; zeros are unchanged."""
        length = np.frexp(self.significand.astype(np.float64))[1]
        left = np.where(self.significand == 0, 0, bits + 1 - length)
        return Fields(self.negative, self.exponent - left, self.significand << left)


def split(x: np.ndarray) -> Fields:
    """Fields of floating-point values of any format."""
    info = ml_dtypes.finfo(x.dtype)
    bits = to_bits(x).astype(np.int64)
    magnitude = bits & ((1 << (info.bits - 1)) - 1)
    field, mantissa = magnitude >> info.nmant, magnitude & ((1 << info.nmant) - 1)
    hidden = (field != 0).astype(np.int64)
    exponent = np.maximum(field, 1) + int(info.minexp) - 1
    return Fields(bits != magnitude, exponent, mantissa | hidden << info.nmant)


def with_sign(magnitudes: np.ndarray, negative: np.ndarray, dtype) -> np.ndarray:
    """Values from bit patterns without sign, and signs."""
    return from_bits(
        magnitudes | negative.astype(np.int64) << (ml_dtypes.finfo(dtype).bits - 1), dtype
    )


def overflow(dtype) -> int:
    """Bits of a result that is too large: infinity, or NaN in a format without infinities."""
    return to_bits(np.array(ml_dtypes.finfo(dtype).max, dtype)).item() + 1


def is_infinite(x: np.ndarray) -> np.ndarray:
    """Which values are infinite, judged by their bits: no NaN raises a warning."""
    bits = to_bits(x).astype(np.int64)
    magnitude = bits & ((1 << (ml_dtypes.finfo(x.dtype).bits - 1)) - 1)
    return (magnitude == overflow(x.dtype)) & (x.dtype != DTYPES["fp8_e4m3"])
