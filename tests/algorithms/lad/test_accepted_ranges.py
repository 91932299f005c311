"""Accepted ranges against the rule, one FP16 number at a time."""

import math

import numpy as np
import pytest

from golden.algorithms.lad import (
    EIGHT_BOUNDS,
    PAPER_BOUNDS,
    THIRTEEN_BOUNDS,
    PiecewiseExp,
    accepted_ranges,
)

LOWEST, HIGHEST = np.float16(-np.inf), np.float16(np.inf)


def extended(close, end, direction):
    """The last number from ``end`` on that is close, and the first that is not."""
    last, x = None, np.float16(end)
    while close(float(x)) and math.isfinite(x):
        last, x = x, np.nextafter(x, direction)
    return last, x


@pytest.mark.parametrize("bounds", [PAPER_BOUNDS, EIGHT_BOUNDS, THIRTEEN_BOUNDS, (-2.0,)])
@pytest.mark.parametrize("units", [0, 1, 13, 64, 256])
def test_ranges_follow_the_rule(bounds, units):
    tau = units / 65536
    exp = PiecewiseExp(bounds)
    lower, upper = accepted_ranges(bounds, tau)
    assert lower[0] == -np.inf and upper[-1] == np.inf
    if units == 0:
        assert lower.tolist() == exp.lower.tolist() and upper.tolist() == exp.upper.tolist()
        return
    for i in range(len(exp)):

        def close(x, i=i):
            return abs(exp.a[i] * x + exp.b[i] - math.exp(x)) <= tau

        if i > 0:
            assert lower[i] == extended(close, exp.lower[i], LOWEST)[1]
        if i < len(exp) - 1:
            last, _ = extended(close, exp.upper[i], HIGHEST)
            assert upper[i] == (exp.upper[i] if last is None else last)


def test_bounds_between_fp16_numbers():
    """-1 / 3 is no FP16 number: the steps begin at the next one outwards."""
    lower, upper = accepted_ranges((-20.1, -1 / 3), 2**-8)
    assert upper[0] == np.float16(upper[0]) > -20.1
    assert lower[2] == -1 / 3


def test_a_flat_line_accepts_all_below():
    """The line of (-100, -50] is below 1e-20 in size, down to the lowest FP16 number."""
    lower, _ = accepted_ranges((-100.0, -50.0), 1e-4)
    assert lower[1] == -np.inf


@pytest.mark.parametrize("tau", [-1e-3, 0.004, float("nan")])
def test_tau_is_checked(tau):
    with pytest.raises(ValueError, match=f"slack must lie between 0 and 0.00390625, not {tau:g}"):
        accepted_ranges(EIGHT_BOUNDS, tau)
