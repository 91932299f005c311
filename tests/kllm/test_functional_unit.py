"""The functional unit: three parts at once, none waiting for another."""

from hw.catalogue import find
from hw.kllm.functional_unit import FunctionalUnitParameters
from sim.core.design import generate
from sim.core.stalls import PATTERNS
from sim.core.stimulus import compare
from sim.drivers.harness.runner import Harness
from sim.testbenches.kllm.functional_unit import STREAMS, testbench

BLOCK = find("kllm.functional_unit")


def test_parts_work_at_once(shipped_trace):
    p = FunctionalUnitParameters.preset("small")
    design = generate(BLOCK, p)
    harness = Harness(design)
    for data in (None, shipped_trace):
        stimulus = testbench.stimulus(p, data, 1000, seed=3)
        assert {name for _, name in STREAMS.values()} == set(stimulus.outputs)
        assert stimulus.transactions == 1000
        for stall in PATTERNS:
            harness.reset()
            outcome = harness.run(stimulus, PATTERNS[stall], 1)
            assert outcome.failure is None
            assert compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of) == []
            if stall == "none":
                assert outcome.cycles == stimulus.cycles
                # Each takes the cycles that it takes alone.
                assert outcome.cycles_of["y"][-1] + 1 == p.element.cycles(len(stimulus.inputs["x"]))
                assert outcome.cycles_of["factor"][-1] + 1 == p.rms.cycles(
                    len(stimulus.inputs["sums"])
                )


def test_formula_is_that_of_the_slowest():
    p = FunctionalUnitParameters()
    assert p.cycles([10], 1, 1) == p.softmax.cycles([10])
    assert p.cycles([1], 1000, 1) == p.element.cycles(1000)
    assert p.cycles([1], 1, 1000) == p.rms.cycles(1000)
