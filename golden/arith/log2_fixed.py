"""log2(x) of integers, rounded down or up, in exact integer arithmetic."""

import functools

import numpy as np


@functools.cache
def logarithms(precision: int, output: int, rounding: str, truncates: bool) -> np.ndarray:
    """For each m, log2(1 + m / 2^precision) in units of 2^-output, rounded.

    In integers: for k = 2^output, the bit length of v^k gives floor(log2(v^k)) = floor(k log2(v)).
    """
    whole, power = 1 << precision, 1 << output
    first = whole + int(rounding == "up" and truncates)
    inner = [
        (v**power).bit_length() - 1 - (precision << output) for v in range(whole + 1, 2 * whole)
    ]
    known = np.array([0, *(np.array(inner, np.int64) + (rounding == "up")), power], np.int64)
    return known[first - whole :][:whole]


def log2_fixed(
    x: np.ndarray, *, width: int, precision: int, output: int, rounding: str
) -> np.ndarray:
    """log2(x) of integers of `width` bits, in units of 2^-output; 0 counts as 1.

    The `precision` bits of x below the leading one index a table: see
    :class:`hw.arith.log2_fixed.Log2Fixed` for the equations.
    """
    x = np.maximum(np.asarray(x, np.int64), 1)
    exponent = np.zeros_like(x)
    for step in (32, 16, 8, 4, 2, 1):
        exponent += np.where(x >> exponent >> step > 0, step, 0)
    fraction = (x << np.maximum(precision - exponent, 0)) >> np.maximum(exponent - precision, 0)
    table = logarithms(precision, output, rounding, width - 1 > precision)
    return (exponent << output) + table[fraction - (1 << precision)]
