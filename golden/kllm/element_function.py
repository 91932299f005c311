"""Element-wise functions of FP16 numbers, in the hardware's integers."""

import numpy as np

from golden.arith.fields import split
from golden.arith.float_to_fixed import float_to_fixed
from golden.arith.formats import canonical, is_nan
from golden.arith.reciprocal import reciprocal
from golden.arith.square_root import square_root
from golden.kllm.wide_exponent import FRACTION, inverse, powers, round_fp16

EXP, SILU, RECIPROCAL, SQUARE_ROOT = range(4)


def exp(x: np.ndarray) -> np.ndarray:
    """e^x of ``float16``."""
    significand, shift = powers(_fixed(-x))
    return canonical(np.where(is_nan(x), x, round_fp16(significand << 10, 26, 15 - shift)))


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + e^-x) of ``float16``."""
    significand, shift = powers(_fixed(x))
    small = shift >= 0  # e^-x below one
    power = np.clip(-shift, 0, 63)  # of two in the denominator
    sum_ = np.where(
        small,
        (1 << 15) + (significand >> np.clip(shift, 0, 63)),
        significand + ((1 << 15) >> power),
    )  # in units of 2^(power - 15): from a half to two
    below_one = sum_ < 1 << 15
    fraction = ((sum_ << below_one) >> 3) & 0xFFF
    infinite = np.isinf(x)
    fields = split(np.where(infinite | is_nan(x), np.float16(1), x))
    field = np.where(infinite, 31, fields.exponent + 15)
    product = fields.significand * inverse(fraction)
    result = round_fp16(product, 26, field - (power - below_one))
    return canonical(np.where(is_nan(x), x, np.copysign(result, x)))


FUNCTIONS = {EXP: exp, SILU: silu, RECIPROCAL: reciprocal, SQUARE_ROOT: square_root}


def element_function(x: np.ndarray, op: np.ndarray) -> np.ndarray:
    """``float16``: the function numbered `op` of each x."""
    return np.choose(op, [function(x) for function in FUNCTIONS.values()])


def _fixed(x: np.ndarray) -> np.ndarray:
    return float_to_fixed(x, 6 + FRACTION, fraction=FRACTION)["o"]
