"""Bit-exact model of the conversion from floating point to fixed point."""

import numpy as np

from golden.arith.formats import flush, is_nan

_ROUND = {"nearest_even": np.rint, "truncate": np.trunc, "floor": np.floor, "ceiling": np.ceil}


def float_to_fixed(
    a: np.ndarray,
    width: int,
    *,
    signed: bool = True,
    fraction: int = 0,
    rounding: str = "nearest_even",
    flush_subnormals: bool = False,
) -> dict[str, np.ndarray]:
    """``o``, the integer of `width` bits (at most 48), and the flags ``overflow`` and ``inexact``.

    Every operand and every limit is exact in ``float64``, and so is every rounding to an integer.
    """
    if flush_subnormals:
        a = flush(a)
    low = -(1 << width - 1) if signed else 0
    high = (1 << width - signed) - 1
    nan = is_nan(a)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        exact = np.ldexp(np.where(nan, 0.0, a.astype(np.float64)), fraction)
    rounded = _ROUND[rounding](exact)
    overflow = nan | (rounded < low) | (rounded > high)
    fitting = np.where(nan, float(high), np.clip(rounded, low, high))
    return {
        "o": fitting.astype(np.int64),
        "overflow": overflow.astype(np.int64),
        "inexact": ((rounded != exact) & ~overflow).astype(np.int64),
    }
