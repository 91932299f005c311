"""The rotation: its model against the transform in float64, and sizes other than the presets."""

import numpy as np
import pytest

from golden.tsuru.rotation import aligned, rotate
from golden.unicaim.rotation import hadamard
from hw.catalogue import find
from hw.tsuru.rotation import RotationParameters
from sim.testbenches.tsuru.operands import random_rows
from sim.testbenches.tsuru.rotation import stimulus_of, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("tsuru.rotation")
ODD = [
    RotationParameters(d=2, lanes=2),
    RotationParameters(d=16, lanes=1),
    RotationParameters(d=32, lanes=32),
]


def exact(x: np.ndarray, back: bool) -> np.ndarray:
    """In float64, which has room for all bits of rows that are finite."""
    ranks = x.shape[-1].bit_length() - 1
    return hadamard(x.astype(np.float64)) / 2 ** ((ranks + (not back)) // 2)


@pytest.mark.parametrize("d", [2, 8, 64, 128])
@pytest.mark.parametrize("back", [False, True])
def test_within_the_stated_error_of_the_transform(d, back):
    x = random_rows(d, 600, np.random.default_rng(d))
    x = x[np.isfinite(x).all(axis=1)]
    got, want = rotate(x, back), exact(x, back)
    large = np.abs(want) > 65520
    assert (got[large] == np.copysign(np.inf, want[large])).all()

    fits = np.abs(want).max(axis=1) < 65504
    x, got, want = x[fits], got[fits], want[fits]
    magnitude = np.maximum(np.abs(x.astype(np.float64)).max(axis=1, keepdims=True), 2.0**-14)
    power = 2 ** np.floor(np.log2(magnitude))
    before = 2.0**-15 * power * d / 2 ** ((d.bit_length() - 1 + (not back)) // 2)
    # After it half a unit in the last place, of what may be the next power of two.
    rounding = np.spacing(np.abs(want).astype(np.float16)).astype(np.float64)
    assert (np.abs(got - want) <= before + rounding).all()
    # Rows of subnormal numbers lose nothing before the rounding.
    least = np.abs(x).max(axis=1) < 2.0**-14
    assert least.sum() > 20
    np.testing.assert_array_equal(got[least], want[least].astype(np.float16))


@pytest.mark.parametrize("d", [8, 64, 128])
def test_rows_come_back_and_keep_their_products(d):
    rng = np.random.default_rng(d)
    k, q = rng.standard_normal((2, 300, d)).astype(np.float16)
    there, met = rotate(k), rotate(q, True)
    error = np.abs(rotate(there, True).astype(np.float64) - k)
    assert error.max() < 2.0**-8 and error.mean() < 2.0**-11
    products = np.sum(k.astype(np.float64) * q, axis=1)
    turned = np.sum(there.astype(np.float64) * met, axis=1)
    np.testing.assert_allclose(turned, products, atol=0.03)
    # It spreads an outlier over all elements.
    k[:, 5] = 100
    assert np.abs(rotate(k)).max() < 100 * 1.5 / np.sqrt(d) + 6


def test_elements_of_a_row_as_integers():
    # 2^(top - 29) = 2^-14 is the unit, of a largest element of 1 to 2.
    x = [1.5, -1, 2.0**-14, -1.5 * 2.0**-14, 1.5 * 2.0**-15, -(2.0**-15), 2.0**-16, -0.0]
    whole, top = aligned(np.array(x, np.float16))
    assert top == 15
    assert whole.tolist() == [1.5 * 2**14, -(2**14), 1, -2, 1, -1, 0, 0]
    least, top = aligned(np.array([2.0**-24, -(2.0**-23)], np.float16))
    assert (top, least.tolist()) == (1, [16, -32])


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_row_that_is_not_finite(value):
    x = np.ones((2, 8), np.float16)
    x[1, 6] = value
    got = rotate(x)
    assert np.isfinite(got[0]).all()
    assert (got[1].view(np.uint16) == 0x7E00).all()


def test_zeros_become_plus_zero_and_large_rows_infinite():
    zeros = np.array([[0.0, -0.0] * 4], np.float16)
    assert (rotate(zeros).view(np.uint16) == 0).all()
    x = np.full((1, 8), -60000, np.float16)
    assert rotate(x)[0].tolist() == [-np.inf, *[0.0] * 7]


@pytest.mark.parametrize("p", ODD, ids=lambda p: p.slug())
def test_odd_sizes_under_stalls(p, shipped_trace):
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(p, trace, 150, seed=6))


def test_every_exponent_and_a_reset(shipped_trace):
    """Rows of every size, down to FP16's least and up to infinity, both ways."""
    p = RotationParameters(d=8, lanes=4)
    rng = np.random.default_rng(7)
    rows = [rng.uniform(-2, 2, p.d) * 2.0**e for e in range(-26, 16) for _ in range(8)]
    x = np.clip(rows, -65504, 65504).astype(np.float16)
    stimulus = stimulus_of(p, x, np.arange(len(x)) % 2, [])
    compiled = Compiled(BLOCK, p)
    compiled.check(stimulus)
    other = testbench.stimulus(p, shipped_trace, 20, seed=8)
    for beats in range(1, 4):
        compiled.check_after_a_cut(stimulus, beats, "random", other)
