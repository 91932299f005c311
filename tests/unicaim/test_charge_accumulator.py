"""The accumulator: its bit-exact model close to the algorithm; sizes other than the presets."""

import numpy as np
import pytest

from golden.algorithms.unicaim.selection import charge_share
from golden.unicaim.charge_accumulator import ChargeAccumulator
from hw.catalogue import find
from hw.unicaim.charge_accumulator import ChargeAccumulator as Hardware
from hw.unicaim.charge_accumulator import ChargeAccumulatorParameters
from sim.testbenches.unicaim.charge_accumulator import Beats, testbench
from tests.support.formal import prove_stream_rules
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.charge_accumulator")
ODD = ChargeAccumulatorParameters(rows=5, score_bits=4, fraction=1, share=3, contexts=3)


@pytest.mark.parametrize(("fraction", "share"), [(8, 4), (3, 2), (0, 1), (8, 0), (2, 6)])
def test_never_far_from_the_algorithm(fraction, share):
    """At most 2^(share - 1 - fraction) scores off after any number of steps, and close to that."""
    rng = np.random.default_rng(fraction)
    model = ChargeAccumulator(64, 11, fraction, share)
    exact = np.zeros(64)
    worst = 0.0
    for step in range(600):
        values = rng.integers(-512, 513, 64) if step % 100 < 50 else np.full(64, step % 7)
        model.share(values)
        exact = charge_share(exact, values.astype(float), share)
        worst = max(worst, np.abs(model.held / 2**fraction - exact).max())
    bound = 2.0 ** (share - 1 - fraction)
    assert worst <= bound + 1e-9
    assert worst > bound / 3 or share == 0


def test_a_new_row_begins_at_the_mean_of_the_others():
    model = ChargeAccumulator(4, 8, 2, 0)
    model.start(2, mean=True)
    assert model.held[2] == 0
    model.share(np.array([0, 0, 9, 0]))
    model.start(0, mean=True)
    assert model.held[0] == 36
    model.share(np.array([3, 0, -8, 0]))
    model.start(3, mean=True)
    assert model.held[3] == -10 and model.used.tolist() == [True, False, True, True]
    model.start(0, mean=False)
    assert model.held[0] == 0


@pytest.fixture(scope="module")
def compiled():
    return Compiled(BLOCK, ODD)


def test_an_odd_size_under_stalls(compiled, shipped_trace):
    for trace in (None, shipped_trace):
        stimulus = testbench.stimulus(ODD, trace, 300, seed=5)
        compiled.check_all(stimulus)


def test_every_mean_of_two_rows(compiled):
    """Of any two scores, and of each alone, with unused rows of other scores."""
    beats = Beats(ODD)
    for a in range(-8, 8):
        for b in range(-8, 8):
            beats.clear()
            for row in (1, 4):
                beats.start(row, mean=False)
            for _ in range(2):
                beats.share(np.array([7, a, -8, 7, b]))
            beats.start(2, mean=True)
            beats.search()
            beats.start(1, mean=True)
            beats.search()
    compiled.check(beats.stimulus(), "none")


@pytest.mark.campaign
def test_paper_preset(shipped_trace):
    p = ChargeAccumulatorParameters.preset("paper")
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        compiled.check(testbench.stimulus(p, trace, 40, seed=4), "none")


def test_stream_rules():
    p = ChargeAccumulatorParameters(rows=2, score_bits=2, fraction=0, share=1)
    prove_stream_rules(Hardware(p), "charge_accumulator", "o", ["i"])
