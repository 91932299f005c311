"""The level converter: its model against the algorithm, rotation, sizes other than the presets."""

import itertools

import numpy as np
import pytest

from golden.unicaim.cells import key_levels
from golden.unicaim.level_converter import ALIGNED, LevelConverter, aligned, divisor_of
from golden.unicaim.rotation import rotated, signs, transform
from hw.catalogue import find
from hw.parameters import ParameterError
from hw.unicaim.level_converter import LevelConverterParameters
from sim.testbenches.unicaim.level_converter import testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.level_converter")
ODD = [
    LevelConverterParameters(rows=5, d=7, key_bits=2, query_bits=3, contexts=3, rotate=False),
    LevelConverterParameters(rows=9, d=8, key_bits=1, query_bits=4, seed=5),
    LevelConverterParameters(rows=4, d=2, key_bits=8, query_bits=1, contexts=2),
]


def test_the_rotation_is_orthogonal():
    x = np.random.default_rng(1).standard_normal((3, 64))
    matrix = rotated(np.eye(64), seed=4)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(64), atol=1e-12)
    np.testing.assert_allclose(x @ matrix, rotated(x, seed=4))
    assert (transform(np.eye(64, dtype=int), 4)[:, 0] == signs(64, 4)).all()
    assert 16 < np.count_nonzero(signs(64, 4) < 0) < 48


def test_the_hardware_has_the_same_signs():
    for d, seed in itertools.product((2, 64, 128), (1, 2)):
        mask = LevelConverterParameters(d=d, seed=seed).signs
        assert [1 - 2 * (mask >> n & 1) for n in range(d)] == signs(d, seed).tolist()


def test_a_rotation_needs_a_power_of_two():
    with pytest.raises(ParameterError, match="d must be a power of two"):
        LevelConverterParameters(d=12)
    with pytest.raises(ValueError, match="d must be a power of two"):
        transform(np.zeros(12), 1)


@pytest.mark.parametrize("value", [0, -1, 2.0**-15, np.inf, np.nan])
def test_a_divisor_that_is_no_positive_normal_number(value):
    with pytest.raises(ValueError, match="a divisor must be a positive normal"):
        divisor_of(value)


def test_elements_in_units_of_the_divisor():
    x = np.array([1, -1.0009765625, 1 / 4096, -1 / 2048, 31.98, 32, -np.inf, np.nan], np.float16)
    want = [1024, -1025, 0, 0, 32752, ALIGNED, -ALIGNED, 0]
    assert aligned(x, divisor_of(1.5)).tolist() == want
    # A subnormal number under the smallest divisor: units of 2^-24.
    assert aligned(np.array([2.0**-24 * 3], np.float16), divisor_of(2.0**-14)).tolist() == [3]


@pytest.mark.parametrize("rotate", [True, False])
def test_levels_are_the_algorithms_but_near_a_boundary(rotate):
    """Levels differ only where the exact quotient is within the stated error of a half."""
    rng, d = np.random.default_rng(3), 64
    k = (rng.standard_normal((400, d)) * rng.uniform(0.3, 3, d) + rng.normal(0, 3, d)).astype(
        np.float16
    )
    mean = k.mean(axis=0).astype(np.float16)
    exact = k.astype(np.float64) - mean
    if rotate:
        exact = rotated(exact, 1)
    step = 0.6 * np.sqrt(np.mean(exact**2))
    divisor = float(np.float16(step * (np.sqrt(d) if rotate else 1)))
    step = divisor / (np.sqrt(d) if rotate else 1)
    model = LevelConverter(3, 1, 1, 1 if rotate else None)
    model.load(0, mean, divisor)
    got = model.keys(0, k)
    want = key_levels(exact[None], np.array([step]), 3)[0]
    quotient = exact / step
    error = 2 * (d if rotate else 1) / 1024  # that of a key and that of the mean
    differs = got != want
    assert np.abs(quotient - np.rint(quotient))[differs].min(initial=0.5) > 0.5 - error
    assert 0 < np.count_nonzero(differs) < 0.02 * differs.size or not rotate
    assert np.abs(got - want).max() <= 1
    assert set(np.unique(got)) == set(range(-4, 5))


@pytest.mark.parametrize("p", ODD, ids=lambda p: p.slug)
def test_odd_sizes_under_stalls(p, shipped_trace):
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(p, trace, 120, seed=5))
