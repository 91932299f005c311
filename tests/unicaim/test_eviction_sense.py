"""The minimum search's sense: every small search, and the algorithm's row from both kinds."""

import itertools

import numpy as np
import pytest

from golden.algorithms.unicaim.selection import eviction_candidate
from golden.unicaim.charge_accumulator import ChargeAccumulator
from golden.unicaim.eviction_sense import eviction_sense
from hw.catalogue import find
from hw.unicaim.eviction_sense import EvictionSense, EvictionSenseParameters
from sim.testbenches.unicaim.eviction_sense import stimulus_of, testbench
from tests.support.formal import prove_stream_rules
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.eviction_sense")
THREE = EvictionSenseParameters(rows=3)


def test_planes_and_discharges_find_the_algorithms_row():
    rng = np.random.default_rng(1)
    for _ in range(1000):
        accumulator = ChargeAccumulator(int(rng.integers(2, 9)), 4, 1, 1)
        rows = len(accumulator.held)
        accumulator.held[:] = rng.integers(-16, 16, rows) >> rng.integers(0, 4)
        accumulator.used[:] = rng.random(rows) < 0.7
        discharge = np.arange(-17, 17)[:, None] < np.where(accumulator.used, accumulator.held, 99)
        want = None
        if accumulator.used.any():
            want = eviction_candidate(accumulator.held, accumulator.used)
        assert eviction_sense(accumulator.planes()) == want == eviction_sense(discharge)


@pytest.fixture(scope="module")
def compiled():
    return Compiled(BLOCK, THREE)


def test_every_search_of_three_steps(compiled):
    steps = np.array(list(itertools.product((False, True), repeat=3)))
    sequences = (itertools.product(steps, repeat=n) for n in (1, 2, 3))
    searches = [np.array(sequence) for sequence in itertools.chain(*sequences)]
    assert len(searches) == 8 + 64 + 512
    assert {eviction_sense(search) for search in searches} == {None, 0, 1, 2}
    for stall in ("none", "random"):
        compiled.check(stimulus_of(THREE, searches), stall)


def test_under_stalls(compiled, shipped_trace):
    for trace in (None, shipped_trace):
        stimulus = testbench.stimulus(THREE, trace, 200, seed=3)
        compiled.check_all(stimulus)


def test_stream_rules():
    prove_stream_rules(EvictionSense(THREE), "eviction_sense", "o", ["i"])


@pytest.mark.campaign
def test_paper_preset(shipped_trace):
    p = EvictionSenseParameters.preset("paper")
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        compiled.check(testbench.stimulus(p, trace, 100, seed=4), "bursts")
