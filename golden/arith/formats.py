"""Floating-point formats as NumPy dtypes; canonical NaNs and flushing as in the hardware."""

import functools

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

NUMPY = frozenset(np.dtype(kind) for kind in (np.float16, np.float32, np.float64))
"""Formats that NumPy itself has."""

Values = np.ndarray | np.floating
"""Numbers of one format: an array or a NumPy scalar."""


@functools.cache
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


@functools.cache
def quiet_nan(dtype) -> int:
    """Bits of the NaN that hardware returns: positive, quiet, no payload."""
    info = ml_dtypes.finfo(dtype)
    if np.dtype(dtype) == DTYPES["fp8_e4m3"]:
        return 0x7F
    top = (1 << (info.bits - 1 - info.nmant)) - 1
    return top << info.nmant | 1 << (info.nmant - 1)


@functools.cache
def _limits(dtype: np.dtype) -> tuple[np.unsignedinteger, np.unsignedinteger, np.unsignedinteger]:
    """Bits of a magnitude, of the largest that is no NaN, and of the least that is normal."""
    number, info = bits_dtype(dtype).type, ml_dtypes.finfo(dtype)
    largest = 0x7E if dtype == DTYPES["fp8_e4m3"] else to_bits(np.array(np.inf, dtype))
    return number((1 << (info.bits - 1)) - 1), number(largest), number(1 << info.nmant)


def is_nan(values: Values) -> np.ndarray:
    """Whether values are NaN; a signalling NaN raises no warning."""
    if values.dtype in NUMPY:
        return np.isnan(values)
    magnitude, largest, _ = _limits(values.dtype)
    return to_bits(values) & magnitude > largest


def canonical(values: Values) -> np.ndarray:
    """The same values, in a new array, with each NaN replaced by the hardware's quiet NaN."""
    changed = np.array(values, order="C")
    nan = is_nan(changed)
    if np.count_nonzero(nan):
        to_bits(changed)[nan] = quiet_nan(values.dtype)
    return changed


def flush(values: Values) -> np.ndarray:
    """The same values, in a new array, with subnormals replaced by zeros of their sign."""
    mask, _, normal = _limits(values.dtype)
    changed = np.array(values, order="C")
    bits = to_bits(changed)
    subnormal = bits & mask < normal
    if np.count_nonzero(subnormal):
        bits[subnormal] &= ~mask
    return changed
