"""Random operand strategies of the testbenches."""

import doctest

import numpy as np

from sim.testbenches import strategies
from sim.testbenches.strategies import every_magnitude, mixture, picks, select, sometimes


def test_examples():
    results = doctest.testmod(strategies)
    assert results.attempted > 3
    assert results.failed == 0


def test_frequencies():
    rng = np.random.default_rng(1)
    drawn = picks(rng, 100_000, {"rare": 1, "frequent": 4})
    assert abs(np.mean(drawn == "rare") - 0.2) < 0.01
    assert abs(np.mean(sometimes(rng, 0.3, 100_000)) - 0.3) < 0.01
    assert isinstance(sometimes(rng, 0.3), bool)


def test_one_kind_for_each_vector():
    rng = np.random.default_rng(1)
    rows = mixture(rng, (1000, 1), {"ones": (1, np.ones((1000, 4))), "count": (1, np.arange(4))})
    assert {tuple(row) for row in rows} == {(1, 1, 1, 1), (0, 1, 2, 3)}


def test_dtype_is_that_of_the_arrays():
    kind = np.array(["zero", "other"])
    assert select(kind, {"zero": 0, "other": np.float16([1, 2])}).dtype == np.float16


def test_every_magnitude():
    drawn = every_magnitude(np.random.default_rng(1), 5, 10_000)
    assert set(drawn) == set(range(32))
