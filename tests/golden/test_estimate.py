"""Means with errors: intervals that hold as often as they say, and what they decide."""

import math

import numpy as np
import pytest

from golden.evaluation.estimate import Decision, Estimate
from golden.studies.study import Verdict, exceeds, reaches

WITHIN, ABOVE, UNKNOWN = Decision.WITHIN, Decision.ABOVE, Decision.UNKNOWN


def test_by_hand():
    found = Estimate.of([1.0, 2.0, 3.0, 6.0])
    assert (found.mean, found.number) == (3, 4)
    assert found.error == pytest.approx(math.sqrt(14 / 3 / 4))
    assert found.interval == pytest.approx((3 - 3.182 * found.error, 3 + 3.182 * found.error))
    for number, quantile in ((2, 12.706), (10, 2.262), (31, 2.042), (500, 2.042)):
        assert Estimate(0, 1, number).interval == pytest.approx((-quantile, quantile))


@pytest.mark.parametrize("number", [2, 3, 10, 25, 40])
def test_intervals_hold_in_95_of_100_samples(number):
    """20,000 samples of the normal distribution, seed 1: within four standard errors."""
    samples = np.random.default_rng(1).normal(3, 2, size=(20_000, number))
    error = samples.std(axis=1, ddof=1) / math.sqrt(number)
    low, _ = Estimate(0, 1, number).interval
    share = np.mean(np.abs(samples.mean(axis=1) - 3) <= -low * error)
    assert share == pytest.approx(0.95, abs=0.0062)


def test_one_value_decides_nothing():
    one = Estimate.of([5.0])
    assert math.isnan(one.error) and one.interval == (-math.inf, math.inf)
    assert {one.against(0), one.against(9), reaches(one, 5)} == {UNKNOWN}


# The half interval is 0.2262.
CASES = [(1.0, 1.3, WITHIN), (1.0, 1.2, UNKNOWN), (1.0, 0.8, UNKNOWN), (1.0, 0.7, ABOVE)]


@pytest.mark.parametrize(("mean", "limit", "decision"), CASES)
def test_at_most_a_limit(mean, limit, decision):
    assert Estimate(mean, 0.1, 10).against(limit) is decision


@pytest.mark.parametrize(("mean", "limit", "decision"), CASES)
def test_above_a_bound(mean, limit, decision):
    assert exceeds(Estimate(-mean, 0.1, 10), -limit) is decision


@pytest.mark.parametrize(
    ("mean", "decision"),
    [(9.3, WITHIN), (9.2, UNKNOWN), (8.8, UNKNOWN), (8.7, ABOVE), (20, WITHIN)],
)
def test_a_figure_reaches_the_paper_s_but_for_a_tenth(mean, decision):
    assert reaches(Estimate(mean, 0.1, 10), 10) is decision


@pytest.mark.parametrize(
    ("decisions", "verdict"),
    [
        ((WITHIN, WITHIN), Verdict.REPRODUCED),
        ((WITHIN, ABOVE), Verdict.PARTLY),
        ((ABOVE, ABOVE), Verdict.NOT),
        ((WITHIN, UNKNOWN), Verdict.PARTLY),
        ((UNKNOWN, UNKNOWN), Verdict.OPEN),
        ((ABOVE, UNKNOWN), Verdict.NOT),
    ],
)
def test_verdicts_of_decisions(decisions, verdict):
    assert Verdict.measured(*decisions) is verdict
