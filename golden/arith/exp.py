"""The exponential function as the hardware computes it."""

from math import isqrt

import ml_dtypes
import numpy as np

from golden.arith.fields import overflow, split
from golden.arith.formats import DTYPES, canonical, flush, from_bits, is_nan
from golden.arith.multipartite import SCALE, Multipartite

WIDTHS = {
    DTYPES["fp16"]: (4, 16, Multipartite(12, 6, ((5, 4, 6), (3, 0, 4)), 14)),
    DTYPES["bf16"]: (6, 15, Multipartite(9, 5, ((3, 0, 4),), 12)),
    DTYPES["fp8_e4m3"]: (2, 8, Multipartite(5, 2, ((2, 0, 3),), 11)),
    DTYPES["fp8_e5m2"]: (3, 8, Multipartite(6, 2, ((2, 0, 4),), 35)),
}
"""Highest exponent of an operand, fraction bits of the product, and the multipartite tables."""


def excess(n: int, k: int) -> int:
    """2^x - x for x = n / 2^k, times 2^SCALE, rounded down."""
    power = 1 << ((SCALE << k) + n)
    for _ in range(k):
        power = isqrt(power)
    return power - ((n << SCALE) >> k)


def exp(x: np.ndarray, *, flush_subnormals: bool = False) -> np.ndarray:
    """e^x, with an error below one unit in the last place; see :class:`hw.arith.exp.Exp`.

    Formats of at most 16 bits. With `flush_subnormals`, subnormal results become zero.
    """
    highest, product_bits, table = WIDTHS[x.dtype]
    width = table.width
    info = ml_dtypes.finfo(x.dtype)
    mantissa_bits, bias = info.nmant, 1 - int(info.minexp)
    infinity, fields = overflow(x.dtype), split(x)
    negative = fields.negative
    # Subnormal numbers are read as 1.m times a power of two: the result is 1 in either case.
    exponent = fields.exponent - (fields.significand >> mantissa_bits == 0)
    significand = fields.significand | 1 << mantissa_bits

    # x log2(e), two's complement, floor for magnitudes and one unit less for negative numbers.
    triple = 3 * significand
    product = np.zeros_like(significand)
    for right, sign in ((1, 1), (6, -1), (8, -1), (11, 1), (14, -1)):
        left = product_bits - mantissa_bits - right
        product += sign * (triple << left if left >= 0 else triple >> -left)
    right = product_bits - width - np.minimum(exponent, highest)
    scaled = np.where(
        right >= 0, product >> np.clip(right, 0, 60), product << np.clip(-right, 0, 60)
    )
    power = np.where(negative, ~scaled, scaled)
    whole, fraction = power >> width, power & ((1 << width) - 1)

    total = fraction + table(excess, fraction)
    field = whole + bias - 1
    total += np.maximum(field, 0) << width
    result = total >> (width - mantissa_bits) >> np.clip(-field, 0, 60)
    too_far = exponent > highest
    result = np.where(~negative & (too_far | (result > infinity)), infinity, result)
    result = np.where(negative & too_far, 0, result)
    result = canonical(np.where(is_nan(x), x, from_bits(result, x.dtype)))
    return flush(result) if flush_subnormals else result
