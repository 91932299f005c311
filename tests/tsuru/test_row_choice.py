"""The choice: every bit and cycle under stalls, and the model against exact softmaxes."""

import numpy as np
import pytest

from golden.tsuru.row_choice import choose, sums
from hw.catalogue import find
from hw.tsuru.row_choice import RowChoiceParameters
from sim.testbenches.tsuru.row_choice import Estimates, stimulus_of, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("tsuru.row_choice")
SMALL = RowChoiceParameters.preset("small")
ODD = RowChoiceParameters(d=8, capacity=64, parallel=3, sinks=2)


@pytest.fixture(scope="module")
def small():
    return Compiled(BLOCK, SMALL)


def test_many_batches_under_stalls(small):
    small.check_all(testbench.stimulus(SMALL, None, 200, 3))


def test_two_sinks(shipped_trace):
    compiled = Compiled(BLOCK, ODD)
    for trace, seed in ((shipped_trace, 1), (None, 2)):
        compiled.check_all(testbench.stimulus(ODD, trace, 60, seed))


def test_every_length(small):
    """Of rows, with all chosen and with none; cycles too."""
    rng = np.random.default_rng(1)
    batches = []
    for rows in range(1, SMALL.rows + 1):
        slots = rows + 3
        present = np.ones(slots, bool)
        present[1:4] = False
        e = rng.integers(-500, 500, (2, slots)) * present
        batches += [Estimates(e, present, threshold) for threshold in (0, 1 << 13)]
    small.check(stimulus_of(SMALL, batches, rng, []))


def test_a_sum_is_nearly_exact():
    rng = np.random.default_rng(2)
    e = (rng.standard_normal((5, 800)) * 400).astype(np.int64)
    found = sums(e, np.ones(800, bool))
    exact = (2.0 ** (e / 64 - found.origin[:, None])).sum(axis=1)
    np.testing.assert_allclose(found.total / 2**24, exact, rtol=2e-3)


@pytest.mark.parametrize("threshold", [300, 600, 750])
def test_rows_are_those_above_the_threshold(threshold):
    """But for rows within 2 % of it, and the rest is what the others have."""
    rng = np.random.default_rng(4)
    e = (rng.standard_normal((3, 500)) * 150).astype(np.int64)
    everywhere = np.ones(500, bool)
    chosen = choose(e, everywhere, np.arange(500) == 499, threshold, 40)
    p = 2.0 ** (e / 64 - (e / 64).max())
    p /= p.sum(axis=1, keepdims=True)
    x = 2.0 ** (-threshold / 64)
    above, near = (p > x * 1.02).any(axis=0), (p > x / 1.02).any(axis=0)
    assert chosen.slots[above].all() and chosen.slots[499]
    assert not chosen.slots[:499][~near[:499]].any()
    assert 1 < chosen.slots.sum() < 500
    rest = np.log((2.0 ** (e[:, ~chosen.slots] / 64)).sum(axis=1))
    np.testing.assert_allclose(chosen.rest.astype(float), rest, atol=0.01)


def test_nothing_is_left_where_all_are_chosen():
    e = np.array([[3, -700, 40]])
    chosen = choose(e, np.ones(3, bool), np.zeros(3, bool), (1 << 14) - 1, 40)
    assert chosen.slots.all() and chosen.rest[0] == -np.inf


def test_the_formula_of_cycles():
    """A tile a cycle, or a row; the sums of the next batch are ready before its turn comes."""
    p = RowChoiceParameters()
    one = p.cycles([[1] * 128])
    assert one == 128 + p.sum_steps + p.choice_cycles([1] * 128) + p.rest_cycles + 1
    assert p.cycles([[1] * 128] * 2) - one == p.choice_cycles([1] * 128) + p.rest_cycles + 1
    assert p.choice_cycles([8, 0, 8]) - p.choice_cycles([1, 0, 1]) == 14
