"""Constants of LAD's exponential: hardware equals the golden model, which keeps its definition."""

import numpy as np
import pytest

from golden.algorithms.lad import EIGHT_BOUNDS, PAPER_BOUNDS, PiecewiseExp
from golden.algorithms.lad.piecewise_exp import THIRTEEN_BOUNDS
from golden.arith.formats import from_bits, to_bits
from golden.lad import tables as golden
from hw.arith.bits.order_key import NAN_KEY
from hw.lad.scores import line_tables as hw

RNG = np.random.default_rng(1)
RANDOM = [
    tuple(np.sort(-RNG.choice(np.arange(1, 161), 15, replace=False) / 8).tolist()) for _ in range(6)
]
BOUNDS = {
    "paper": PAPER_BOUNDS,
    "eight": EIGHT_BOUNDS,
    "thirteen": THIRTEEN_BOUNDS,
    "highest": (-0.125,),
    "lowest": (-255.875,),
    "far apart": (-255.875, -200.0, -0.125),
    "adjacent": tuple(-eighths / 8 for eighths in range(15, 0, -1)),
    **{f"random {number}": bounds for number, bounds in enumerate(RANDOM)},
}
SLACKS = [0, 1, 13, 64, 256]


def keys(numbers):
    """Order keys of negative float16 numbers."""
    return tuple((0xFFFF - to_bits(numbers)).tolist())


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_hardware_equals_golden(bounds):
    for slack in SLACKS:
        found, expected = hw.line_tables(bounds, slack), golden.line_tables(bounds, slack)
        assert found.slopes == tuple(to_bits(expected.a).tolist())
        assert found.intercepts == tuple(to_bits(expected.b).tolist())
        assert found.bounds == keys(expected.bounds)
        assert found.lower[1:] == keys(expected.lower[1:])
        assert found.upper[:-1] == keys(expected.upper[:-1])
        # The first range has no lower end, and the last one no upper end; NaN is in none.
        assert (found.lower[0], found.upper[-1]) == (NAN_KEY, hw.HIGHEST_KEY)
        assert (expected.lower[0], expected.upper[-1]) == (-np.inf, np.inf)


@pytest.mark.parametrize("slack", [0, 13, 256])
@pytest.mark.parametrize("bounds", [PAPER_BOUNDS, EIGHT_BOUNDS], ids=["paper", "eight"])
def test_accepted_numbers(bounds, slack):
    """Each mode accepts its interval, and beyond it the numbers up to the first that is too far.

    All negative float16 numbers are tested against the definition.
    """
    x = from_bits(np.arange(0x8001, 0xFC00, dtype=np.uint16), np.float16)[::-1]  # ascending
    exact = x.astype(np.float64)
    exp = PiecewiseExp(bounds)
    tables = golden.line_tables(bounds, slack)
    widened = 0
    for i in range(len(exp)):
        inside = (exact > exp.lower[i]) & (exact <= exp.upper[i])
        close = np.abs(exp.a[i] * exact + exp.b[i] - np.exp(exact)) <= slack / 2**16
        first, last = np.flatnonzero(inside)[[0, -1]]
        below = np.cumprod(close[:first][::-1])[::-1] == 1
        above = np.cumprod(close[last + 1 :]) == 1
        # The lower bound belongs to the interval below: it is the first number to be accepted.
        accepted = np.concatenate([below, inside[first : last + 1], above])
        assert np.array_equal((x > tables.lower[i]) & (x <= tables.upper[i]), accepted)
        widened += int(below.sum() + above.sum())
    print(f"{widened} numbers accepted beyond their intervals")
    assert (widened > 0) == (slack > 0)


def test_more_slack_accepts_more():
    ranges = [golden.line_tables(EIGHT_BOUNDS, slack) for slack in range(0, 257, 16)]
    for low, high in zip(ranges, ranges[1:], strict=False):
        assert (high.lower <= low.lower).all() and (high.upper >= low.upper).all()
    first = ranges[0]
    assert np.array_equal(first.lower[1:], first.bounds)
    assert np.array_equal(first.upper[:-1], first.bounds)
