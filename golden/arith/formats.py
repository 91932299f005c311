"""Floating-point formats as NumPy dtypes; canonical NaNs and flushing as in the hardware."""

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

DTYPES = {
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp32": np.dtype(np.float32),
    "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
"""Format names of the hardware, and dtypes with the same values and bits."""

Values = np.ndarray | np.floating
"""Numbers of one format: an array or a NumPy scalar."""


def bits_dtype(dtype) -> np.dtype:
    """The unsigned integer of a format's width."""
    return np.dtype(f"u{np.dtype(dtype).itemsize}")


def to_bits(values: Values) -> np.ndarray:
    """Bit patterns of floating-point values, as unsigned integers of the same width."""
    plain = np.ascontiguousarray(values).reshape(np.shape(values))  # a scalar keeps its shape
    return plain.view(bits_dtype(plain.dtype))


def from_bits(bits: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """Values of bit patterns; `dtype` is a dtype or a name among :data:`DTYPES`."""
    kind = DTYPES[dtype] if isinstance(dtype, str) else np.dtype(dtype)
    return np.ascontiguousarray(bits, bits_dtype(kind)).view(kind)


def quiet_nan(dtype) -> int:
    """Bits of the NaN that hardware returns: positive, quiet, no payload."""
    info = ml_dtypes.finfo(dtype)
    if np.dtype(dtype) == DTYPES["fp8_e4m3"]:
        return 0x7F
    top = (1 << (info.bits - 1 - info.nmant)) - 1
    return top << info.nmant | 1 << (info.nmant - 1)


def is_nan(values: Values) -> np.ndarray:
    """Whether values are NaN, by their bits, so that a signalling NaN raises no warning."""
    bits = to_bits(values)
    magnitude = bits & bits.dtype.type((1 << (8 * bits.itemsize - 1)) - 1)
    if values.dtype == DTYPES["fp8_e4m3"]:
        return magnitude == 0x7F
    return magnitude > to_bits(np.array(np.inf, values.dtype))


def canonical(values: Values) -> np.ndarray:
    """The same values with each NaN replaced by the hardware's quiet NaN."""
    bits = to_bits(values)
    nan = bits.dtype.type(quiet_nan(values.dtype))
    return np.where(is_nan(values), nan, bits).view(values.dtype)


def flush(values: Values) -> np.ndarray:
    """The same values with subnormals replaced by zeros of their sign."""
    bits = to_bits(values)
    info = ml_dtypes.finfo(values.dtype)
    magnitude = bits & bits.dtype.type((1 << (info.bits - 1)) - 1)
    subnormal = magnitude < 1 << info.nmant
    return np.where(subnormal, bits - magnitude, bits).view(values.dtype)
