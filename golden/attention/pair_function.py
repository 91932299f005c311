"""Bit-exact model of the element-wise functions of two FP16 numbers."""

import numpy as np

from golden.arith.float_convert import float_convert
from golden.arith.float_multiply import float_multiply
from golden.arith.float_multiply_add import float_multiply_add
from golden.arith.float_to_fixed import float_to_fixed
from golden.arith.wide_exponent import FRACTION, inverse, one_plus, powers

SUM, PRODUCT, SILU_PRODUCT, GELU_PRODUCT = range(4)

SLOPE, CUBE = 27415104757, 74821
"""2 sqrt(2 / pi) in units of 2^-34, and 0.044715 times that in units of 2^-20."""
LOWEST = -(1 << 19)
"""The least argument of the logistic function, -32, in units of 2^-14."""
TAIL = 1 << 5
LEAST = np.float32(2.0**-120)
"""The logistic function of arguments less than TAIL above the lowest."""


def pair_function(a: np.ndarray, b: np.ndarray, op: np.ndarray | int) -> np.ndarray:
    """``float16``: a + b, a b, SiLU(a) b or GELU(a) b of ``float16`` pairs, as `op` says."""
    a, b, op = np.broadcast_arrays(a, b, op)
    gated, is_sum = op >= SILU_PRODUCT, op == SUM
    kept = np.where(gated & np.isneginf(a), np.float16(-0.0), a)
    one, minus_zero = np.float16(1), np.float32(-0.0)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        addend = np.where(is_sum, b.astype(np.float32), minus_zero)
    pair = float_multiply_add(kept, np.where(is_sum, one, b), addend)
    argument = float_to_fixed(a, 20, fraction=FRACTION)["o"]
    argument = np.where(op == GELU_PRODUCT, cubic(argument), argument)
    factor = np.where(gated, logistic(argument), np.float32(1))
    return float_convert(float_multiply(pair, factor, flush_subnormals=True), "fp16")


def cubic(a: np.ndarray) -> np.ndarray:
    """2 sqrt(2 / pi) (a + 0.044715 a³), limited to 20 bits; both in units of 2^-14."""
    near = np.clip(a, -(1 << 17), (1 << 17) - 1)
    factor = (SLOPE + (near * near >> FRACTION) * CUBE) >> 18
    return np.clip((near * factor + (1 << 15)) >> 16, LOWEST, ~LOWEST)


def logistic(argument: np.ndarray) -> np.ndarray:
    """``float32``: 1 / (1 + e^-z) of arguments in units of 2^-14, with 15 digits."""
    fraction, scale = one_plus(*powers(argument))
    value = np.ldexp(inverse(fraction).astype(np.float32), -15 - scale)
    return np.where(argument < LOWEST + TAIL, LEAST, value)
