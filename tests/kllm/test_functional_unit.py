"""The functional unit: three parts at once, none waiting for another."""

from hw.catalogue import find
from hw.kllm.functional_unit import FunctionalUnitParameters
from sim.testbenches.kllm.functional_unit import STREAMS, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.functional_unit")


def test_parts_work_at_once(shipped_trace):
    p = FunctionalUnitParameters.preset("small")
    compiled = Compiled(BLOCK, p)
    for data in (None, shipped_trace):
        stimulus = testbench.stimulus(p, data, 1000, seed=3)
        assert {name for _, name in STREAMS.values()} == set(stimulus.outputs)
        assert stimulus.transactions == 1000
        # Each takes the cycles that it takes alone.
        taken = compiled.check_all(stimulus)["none"].cycles_of
        assert taken["y"][-1] + 1 == p.element.cycles(len(stimulus.inputs["x"]))
        assert taken["factor"][-1] + 1 == p.rms.cycles(len(stimulus.inputs["sums"]))


def test_formula_is_that_of_the_slowest():
    p = FunctionalUnitParameters()
    assert p.cycles([10], 1, 1) == p.softmax.cycles([10])
    assert p.cycles([1], 1000, 1) == p.element.cycles(1000)
    assert p.cycles([1], 1, 1000) == p.rms.cycles(1000)
