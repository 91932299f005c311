"""Operations of two vectors: gaps, commands that are late, elements beside the core's products."""

import dataclasses

import numpy as np
import pytest

from golden.attention.pair_function import GELU_PRODUCT, PRODUCT, SILU_PRODUCT, SUM
from hw.attention.vector_unit import VectorUnitParameters
from hw.catalogue import find
from sim.core.design import generate
from sim.core.stalls import PATTERNS
from sim.drivers.harness.session import Session
from sim.testbenches.attention.vector_unit import Pairs, real_pairs, stimulus_of, testbench
from sim.testbenches.kllm.kllm_core import testbench as core_testbench
from tests.support.kllm.compiled import Compiled
from tests.support.kllm.core import ODD, check, compiled

BLOCK = find("attention.vector_unit")
SMALL = VectorUnitParameters.preset("small")
RNG = np.random.default_rng


def test_formula_at_its_edges():
    p = VectorUnitParameters(lanes=4, stages=3)
    assert [p.cycles([n]) for n in (1, 4, 5, 8)] == [4, 4, 5, 5]
    assert p.cycles([1, 1, 1]) == 6  # a beat for each vector
    assert p.latency == 3


def test_trace_has_every_operation(shipped_trace):
    pairs, _ = real_pairs(SMALL, shipped_trace, 12)
    assert {pair.op for pair in pairs} == {SUM, PRODUCT, SILU_PRODUCT, GELU_PRODUCT}
    assert all(pair.a.shape == pair.b.shape for pair in pairs)
    assert not any(np.array_equal(pair.a, pair.b) for pair in pairs)


def test_no_beat_is_accepted_without_its_command():
    """Pairs wait for a command that comes a step later, and then are that command's."""
    pairs = [Pairs(PRODUCT, np.float16([3, 5, 7]), np.float16([2, 2, -1]))]
    stimulus = stimulus_of(SMALL, pairs, RNG(1), [])
    session = Session(generate(BLOCK, SMALL))
    early = session.step({"i": stimulus.inputs["i"]}, {"o": 1})
    assert early.failure is not None and len(early.outputs["o"]) == 0
    session.close()
    session = Session(generate(BLOCK, SMALL))
    outcome = session.step(stimulus.inputs, {"o": 2})
    np.testing.assert_array_equal(outcome.outputs["o"], stimulus.outputs["o"])
    session.close()


@pytest.mark.campaign
@pytest.mark.parametrize("lanes", [1, 3, 5])
@pytest.mark.parametrize("stages", [1, 2, 8])
def test_every_size(lanes, stages, shipped_trace):
    p = VectorUnitParameters(lanes, stages)
    compiled = Compiled(BLOCK, p)
    for trace, seed in ((None, 1), (None, 2), (shipped_trace, 1)):
        compiled.check_all(testbench.stimulus(p, trace, 40, seed))


@pytest.mark.campaign
def test_vectors_beside_products(shipped_trace):
    """In the core, under every stall; neither takes a cycle more than alone."""
    p = dataclasses.replace(ODD, vector_lanes=3)
    core = compiled(p)
    for trace, seed in ((None, 13), (shipped_trace, 13)):
        stimulus = core_testbench.stimulus(p, trace, 40, seed)
        assert len(stimulus.outputs["elements"]) > 100 and "turned" not in stimulus.outputs
        for stall in PATTERNS:
            outcome = check(core, stimulus, stall)
            assert stall != "none" or stimulus.wrong_cycles(outcome) is None
