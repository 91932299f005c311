"""Exact sums of products of FP16 numbers, for many columns at once, rounded once to FP32."""

import numpy as np

from golden.arith.formats import from_bits, quiet_nan

UNIT = -24
"""Every finite FP16 number is an integer of 40 bits and a sign, times 2^UNIT."""

_EXACT = 2.0**53
_HALF = 20  # bits of the lower half of such an integer


def units(values: np.ndarray) -> np.ndarray:
    """``float64`` integers: finite FP16 values in units of 2^-24; 0 for infinities and NaNs."""
    values = np.asarray(values, np.float16)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        wide = values.astype(np.float64)
    return np.ldexp(np.where(np.isfinite(wide), wide, 0.0), -UNIT)


def dot(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``a @ b`` of integers from :func:`units`; returns (high, low), whose sum is exact.

    `high` is a multiple of 2^40 or the whole sum; `low` is below 2^40 and not negative. Sums of up
    to 4096 terms are exact: if float64 is not wide enough, both operands are split in two halves,
    and the four products are summed separately.
    """
    terms = a.shape[-1]
    if terms > 4096:
        raise ValueError(f"an exact sum has at most 4096 terms, not {terms}")
    if _fits(a, b):
        total = a @ b
        return total, np.zeros_like(total)
    (a1, a0), (b1, b0) = _halves(a), _halves(b)
    low, middle, high = a0 @ b0, a0 @ b1 + a1 @ b0, a1 @ b1
    # All three are integers below 2^53; carry the bits above the lowest 20 to the next one.
    carry = np.floor(np.ldexp(low, -_HALF))
    low -= np.ldexp(carry, _HALF)
    middle += carry
    carry = np.floor(np.ldexp(middle, -_HALF))
    middle -= np.ldexp(carry, _HALF)
    high += carry
    return np.ldexp(high, 2 * _HALF), np.ldexp(middle, _HALF) + low


def round_sum(high: np.ndarray, low: np.ndarray, unit: int) -> np.ndarray:
    """``float32``: (high + low) 2^unit rounded once, to nearest even; zero is +0.

    high, low
        As :func:`dot` returns them. Their sum in float64 is rounded to odd. As float64 has 29 bits
        more than float32, rounding that again gives the correctly rounded sum.
    """
    total = high + low
    error = low - (total - high)  # exact, since `low` is the smaller one
    inexact = np.flatnonzero(error)
    if inexact.size:
        bits = total.ravel().view(np.int64).copy()
        even = inexact[bits[inexact] & 1 == 0]
        upwards = (error.ravel()[even] > 0) == (bits[even] >= 0)
        bits[even] += np.where(upwards, 1, -1)
        total = bits.view(np.float64).reshape(total.shape)
    return np.ldexp((total + 0.0).astype(np.float32), np.int32(unit))


def with_invalid(total: np.ndarray, invalid: np.ndarray) -> np.ndarray:
    """The sums with the hardware's NaN where `invalid`."""
    return np.where(invalid, from_bits(np.uint32(quiet_nan(np.float32)), np.float32), total)


def _fits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether float64 holds every partial sum of ``a @ b``: below 2^53 units of the lowest bit."""
    largest = np.abs(a).sum(axis=-1).max(initial=0.0) * np.abs(b).max(initial=0.0)
    return largest < _EXACT * _last_place(a) * _last_place(b)


def _last_place(values: np.ndarray) -> float:
    """The largest power of two that divides all of some integers below 2^53."""
    merged = np.bitwise_or.reduce(np.abs(values).astype(np.int64), axis=None, initial=0)
    return float(merged & -merged) or 1.0


def _halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (high, low) with values = high 2^20 + low."""
    high = np.trunc(np.ldexp(values, -_HALF))
    return high, values - np.ldexp(high, _HALF)
