"""Bit-exact model of the inverse RMS: 1 / RMS of a vector from the sums of its squares."""

import numpy as np

from golden.arith.float_multiply_add import float_multiply_add
from golden.arith.formats import from_bits, quiet_nan, to_bits
from golden.arith.inverse_square_root import double_root
from golden.arith.wide_exponent import INVERSE_ROOT, round_fp16


def mean_square(
    s: np.ndarray, o: np.ndarray, s_a: np.ndarray, inverse_k: np.ndarray, eps: np.ndarray
) -> np.ndarray:
    """(s_a^2 s + o) inverse_k + eps as ``float32``, rounded after each of its three steps.

    All but s_a, ``float16``, are ``float32``. s_a^2 is exact, and with o and eps not negative each
    of the other two steps has a relative error of at most 2^-24, so the result one of 2^-22.
    """
    scale = s_a.astype(np.float32)
    value = float_multiply_add(scale, scale, np.zeros_like(s), flush_subnormals=True)
    value = float_multiply_add(value, s, o, flush_subnormals=True)
    return float_multiply_add(value, inverse_k, eps, flush_subnormals=True)


def inverse_rms(
    s: np.ndarray, o: np.ndarray, s_a: np.ndarray, inverse_k: np.ndarray, eps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """r = ``float16`` of 1 / sqrt(the mean square), and the flags invalid, saturated.

    Operands are as in :func:`mean_square`; see :class:`hw.kllm.inverse_rms.InverseRms` for the
    flags. Error in units in the last place of r: half the mean square's error, 2^-12; the table, at
    most 0.32; the rounding 0.5.
    """
    bits = to_bits(mean_square(s, o, s_a, inverse_k, eps)).astype(np.int64)
    magnitude, negative = bits & 0x7FFFFFFF, bits >> 31 == 1
    zero = magnitude == 0
    invalid = (magnitude >= 0x7F800000) | (negative & ~zero)
    exponent = (magnitude >> 23) - 127
    index = (exponent & 1) << 12 | (magnitude >> 11) & 0xFFF
    root = INVERSE_ROOT(double_root, index)
    r = round_fp16(root, 15, 14 - (exponent >> 1))
    saturated = (np.isinf(r) | zero) & ~invalid
    r = np.where(saturated, np.float16(65504), r)
    not_a_number = from_bits(np.array(quiet_nan(np.float16)), np.float16)
    return np.where(invalid, not_a_number, r), invalid, saturated
