"""The mean of rows: its model against float64, and sizes other than the presets."""

import numpy as np
import pytest

from golden.tsuru.value_mean import add_row, mean_of, means
from hw.catalogue import find
from hw.tsuru.value_mean import ValueMeanParameters
from sim.testbenches.tsuru.value_mean import random_sums, stimulus_of, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("tsuru.value_mean")
ODD = ValueMeanParameters(d=6, lanes=3, capacity=1)


@pytest.mark.parametrize("offset", [0.0, 0.3, -20.0])
def test_8192_rows_within_the_rounding_of_fp16(offset):
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((8192, 16)) + offset).astype(np.float16)
    found, total = means(x)
    exact = x.astype(np.float64).cumsum(axis=0)
    number = np.arange(1, 8193)[:, None]
    np.testing.assert_allclose(total, exact[-1], atol=2.0**-17 * np.abs(exact).max())
    # Before the rounding to FP16 a hundredth of the stated bound, 2^-11 of the mean magnitude.
    magnitude = np.abs(x.astype(np.float64)).cumsum(axis=0) / number
    half = np.spacing(np.abs(exact / number).astype(np.float16)).astype(np.float64) / 2
    error = np.abs(found - exact / number)
    assert (error <= 1.001 * half + 2.0**-17 * magnitude).all()


def test_a_mean_in_fp16_would_cease_to_move():
    """Why the sum is kept: what the docstring says of the other way."""
    x = np.full(2000, 1.0, np.float16)
    mean = np.float16(0.5)
    for number, value in enumerate(x, 1001):
        mean = np.float16(mean + np.float16((value - mean) / np.float16(number)))
    assert mean < 0.8  # where (1000 0.5 + 2000) / 3000 is 0.83
    total = add_row(np.float16([2000]), np.float32([500]), 3000)
    assert mean_of(total, 3000)[0] == np.float16(2500 / 3000)


def test_the_first_row_needs_no_sum():
    x = np.array([1.5, -2, 0, -0.0], np.float16)
    total = add_row(x, np.full(4, np.nan, np.float32), 1)
    np.testing.assert_array_equal(total, [1.5, -2, 0, 0])
    np.testing.assert_array_equal(mean_of(total, 1), x)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_remains(value):
    x = np.ones((5, 2), np.float16)
    x[1, 0] = value
    found, _ = means(x)
    np.testing.assert_array_equal(found[1:, 0], np.full(4, value, np.float16))
    np.testing.assert_array_equal(found[:, 1], 1)


def test_odd_sizes_under_stalls(shipped_trace):
    compiled = Compiled(BLOCK, ODD)
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(ODD, trace, 60, seed=6))


def test_every_number_and_a_reset(shipped_trace):
    """All reciprocals, with sums whose means are near FP16's ties."""
    p = ValueMeanParameters(d=1, lanes=1, capacity=1023)
    rng = np.random.default_rng(7)
    number = np.arange(1, 1024)
    ties = (rng.integers(1024, 2048, 1023) + 0.5) * 2.0 ** rng.integers(-14, 4, 1023) * number
    x = np.zeros((1023, 1), np.float16)
    stimulus = stimulus_of(p, x, ties[:, None].astype(np.float32), number, [])
    compiled = Compiled(BLOCK, p)
    compiled.check(stimulus)
    other = stimulus_of(p, *random_sums(p, 20, rng), [])
    for beats in range(1, 4):
        compiled.check_after_a_cut(stimulus, beats, "random", other)
