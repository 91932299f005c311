"""Bit-exact model of the conversion from fixed point to floating point."""

import numpy as np

from golden.arith.float_convert import round_to


def fixed_to_float(
    a: np.ndarray, to: str, *, fraction: int = 0, flush_subnormals: bool = False
) -> np.ndarray:
    """The integers `a`, of at most 48 bits, divided by 2^fraction, in the format named `to`."""
    exact = np.ldexp(np.asarray(a).astype(np.float64), -fraction)
    return round_to(exact, to, flush_subnormals=flush_subnormals)
