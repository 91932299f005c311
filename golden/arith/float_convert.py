"""Bit-exact model of the conversion between floating-point formats; shared rounding."""

import ml_dtypes
import numpy as np

from golden.arith.formats import DTYPES, Values, canonical, flush, is_nan


def float_convert(
    a: Values, to: str, *, flush_subnormals: bool = False, saturate: bool = False
) -> np.ndarray:
    """`a` in the format named `to`, rounded once, to nearest even.

    saturate
        Whether numbers that are too large, infinity included, become the largest number.
    """
    if flush_subnormals:
        a = flush(a)
    exact = np.where(is_nan(a), np.float64(np.nan), _widened(a))
    return round_to(exact, to, flush_subnormals=flush_subnormals, saturate=saturate)


def round_to(
    exact: np.ndarray, to: str, *, flush_subnormals: bool = False, saturate: bool = False
) -> np.ndarray:
    """``float64`` values in the format named `to`, rounded once, to nearest even.

    In units of the result's last place, the value is rounded to an integer; scaling by that power
    of two is exact, so this is the only rounding.
    """
    dtype = DTYPES[to]
    info = ml_dtypes.finfo(dtype)
    _, exponent = np.frexp(exact)
    last_place = np.maximum(exponent - 1, int(info.minexp)) - info.nmant
    with np.errstate(invalid="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(exact, -last_place)), last_place)
    largest = float(info.max)
    too_large = np.abs(rounded) > largest
    limit = largest if saturate else np.inf
    rounded = np.where(too_large, np.copysign(limit, rounded), rounded)
    with np.errstate(invalid="ignore"):
        result = canonical(rounded.astype(dtype))
    return flush(result) if flush_subnormals else result


def _widened(a: Values) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return np.asarray(a).astype(np.float64)
