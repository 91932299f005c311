"""Bit-exact model of the element-wise functions of FP16 numbers, in integers."""

import numpy as np

from golden.arith.fields import split
from golden.arith.float_to_fixed import float_to_fixed
from golden.arith.formats import canonical, is_nan
from golden.arith.reciprocal import reciprocal
from golden.arith.square_root import square_root
from golden.arith.wide_exponent import FRACTION, inverse, one_plus, powers, round_fp16

EXP, SILU, RECIPROCAL, SQUARE_ROOT = range(4)


def exp(x: np.ndarray) -> np.ndarray:
    """e^x of ``float16``.

    Error in units in the last place, at most: x rounded to 2^-14, 0.06; log2(e) truncated, 0.03;
    their product rounded to 2^-12, 0.17; the power's significand, 0.06; the result's rounding, 0.5.
    """
    significand, shift = powers(_fixed(-x))
    return canonical(np.where(is_nan(x), x, round_fp16(significand << 10, 26, 15 - shift)))


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + e^-x) of ``float16``.

    Error in units in the last place, at most 1.3: e^-x, 0.33 as in :func:`exp` (in full only where
    it is far above one); truncation of the sum, 0.06; the table of reciprocals with its 12-bit
    argument, 0.41; the result's rounding, 0.5.
    """
    significand, shift = powers(_fixed(x))
    fraction, scale = one_plus(significand, shift)
    infinite = np.isinf(x)
    fields = split(np.where(infinite | is_nan(x), np.float16(1), x))
    field = np.where(infinite, 31, fields.exponent + 15)
    product = fields.significand * inverse(fraction)
    result = round_fp16(product, 26, field - scale)
    return canonical(np.where(is_nan(x), x, np.copysign(result, x)))


FUNCTIONS = {EXP: exp, SILU: silu, RECIPROCAL: reciprocal, SQUARE_ROOT: square_root}


def element_function(x: np.ndarray, op: np.ndarray | int) -> np.ndarray:
    """``float16``: the function numbered `op` of each x."""
    return np.choose(op, [function(x) for function in FUNCTIONS.values()])


def _fixed(x: np.ndarray) -> np.ndarray:
    return float_to_fixed(x, 6 + FRACTION, fraction=FRACTION)["o"]
