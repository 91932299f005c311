"""Intervals and lines of exp, against quadrature and the paper's numbers."""

import numpy as np
import pytest

from golden.algorithms.attention import softmax
from golden.algorithms.lad import (
    EIGHT_BOUNDS,
    PAPER_BOUNDS,
    THIRTEEN_BOUNDS,
    PiecewiseExp,
    piecewise_softmax_attention,
)

ALL = [PAPER_BOUNDS, EIGHT_BOUNDS, THIRTEEN_BOUNDS, (-0.25,)]


@pytest.mark.parametrize("bounds", ALL)
def test_no_line_is_closer_to_exp(bounds):
    """The residual of a least-squares line is orthogonal to 1 and to x on its interval."""
    exp = PiecewiseExp(bounds)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    for i, (low, high) in enumerate(zip(bounds, (*bounds[1:], 0.0), strict=True), 1):
        x = (low + high) / 2 + (high - low) / 2 * nodes
        residual = exp.a[i] * x + exp.b[i] - np.exp(x)
        size = np.sum(weights * np.exp(x))
        assert abs(np.sum(weights * residual)) < 1e-12 * size
        assert abs(np.sum(weights * residual * nodes)) < 1e-12 * size
    assert exp.a[0] == exp.b[0] == 0


def test_intervals_hold_their_upper_bound_and_not_their_lower_one():
    exp = PiecewiseExp(PAPER_BOUNDS)
    assert len(exp) == 5
    for i, bound in enumerate(PAPER_BOUNDS):
        x = np.array([np.nextafter(bound, -99), bound, np.nextafter(bound, 0)])
        assert exp.interval(x).tolist() == [i, i, i + 1]
    assert exp.interval(np.array([-1e30, -np.inf, 0.0, 3.0])).tolist() == [0, 0, 4, 4]
    # A score above the maximum keeps to the last line.
    assert exp(np.array([3.0]))[0] == exp.a[4] * 3 + exp.b[4]


def test_the_numbers_of_the_example():
    """Fig. 3 as far as the text gives it: s'_4 = 4.98 and s'_4 - m = -5.34; s_7 - m = -7.95."""
    exp = PiecewiseExp(PAPER_BOUNDS)
    m = 4.98 + 5.34
    assert exp.interval(np.array([4.98 - m, -7.95])).tolist() == [2, 1]
    # MD: comparators 1, 1, 0, 0, 0 mean interval 1.
    x = -7.95
    assert [int(lower < x) for lower in exp.lower] == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((), "bounds must be 1 to 15 numbers, not 0"),
        (tuple(range(-16, 0)), "bounds must be 1 to 15 numbers, not 16"),
        ((-1.0, -2.0), "bounds must rise and lie below 0"),
        ((-1.0, -1.0), "bounds must rise and lie below 0"),
        ((-1.0, 0.0), "bounds must rise and lie below 0"),
        ((-np.inf, -1.0), "bounds must rise and lie below 0"),
        ((np.nan,), "bounds must rise and lie below 0"),
    ],
)
def test_bounds_are_checked(bounds, message):
    with pytest.raises(ValueError, match=message):
        PiecewiseExp(bounds)


def test_fifteen_bounds_are_allowed():
    assert len(PiecewiseExp(tuple(np.arange(-15.0, 0)))) == 16


def rows_of(trace):
    """Scores of some rows of real attention, with the values they weigh."""
    for layer in range(len(trace.q)):
        for t in (60, 127, 300, 511):
            q, k, v = (x[layer].astype(np.float64) for x in (trace.q, trace.k, trace.v))
            keys = np.repeat(k[:, : t + 1], trace.group, axis=0)
            yield trace.scale * np.einsum("hd,hnd->hn", q[:, t], keys), v[:, : t + 1]


def test_softmax_error_on_real_scores(shipped_trace):
    """The paper: below 1e-6 in the mean square; here in every row, with five in their mean."""
    worst = {}
    for bounds in ALL[:3]:
        exp = PiecewiseExp(bounds)
        errors = [
            np.square(piecewise_softmax_attention(s, v, exp)[1] - softmax(s)).mean(axis=1)
            for s, v in rows_of(shipped_trace)
        ]
        worst[bounds] = np.max(errors), np.mean(errors)
    # Rows this short have larger probabilities than those of 2000 tokens: five miss the mark.
    assert worst[PAPER_BOUNDS][1] < 1e-5
    assert worst[EIGHT_BOUNDS][1] < 1e-6
    assert worst[THIRTEEN_BOUNDS][0] < 1e-6


def test_piecewise_softmax_is_its_formula():
    rng = np.random.default_rng(5)
    s, v = 4 * rng.normal(size=(4, 9)), rng.normal(size=(2, 9, 3))
    o, weights = piecewise_softmax_attention(s, v, PiecewiseExp(PAPER_BOUNDS))
    exp = PiecewiseExp(PAPER_BOUNDS)
    for h in range(4):
        num, den = np.zeros(3), 0.0
        for i in range(9):
            x = s[h, i] - max(s[h])
            line = sum(x > bound for bound in PAPER_BOUNDS)
            w = exp.a[line] * x + exp.b[line]
            num, den = num + w * v[h // 2, i], den + w
        np.testing.assert_allclose(o[h], num / den, rtol=1e-12)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
