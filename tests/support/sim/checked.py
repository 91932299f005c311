"""A block with memories in the compiled harness, for its tests."""

from hw.catalogue import Block
from hw.parameters import Parameters
from sim.core.design import generate
from sim.core.memory import FASTEST, MemoryTiming, timings_of
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Outcome, Stimulus, compare, compare_memories
from sim.drivers.harness.runner import Harness
from sim.drivers.run import load_testbench


class Checked:
    """Runs stimuli, each from reset; outputs by the testbench, and the memories afterwards.

    reset
        False: nothing before a stimulus but the reset during random traffic with which each begins.
    """

    def __init__(self, block: Block, parameters: Parameters, reset: bool = True):
        self.parameters, self._reset = parameters, reset
        self.design = generate(block, parameters)
        self._harness = Harness(self.design)
        self._compare = getattr(load_testbench(block), "compare", compare)

    def simulate(
        self,
        stimulus: Stimulus,
        stall: str = "none",
        timing: MemoryTiming = FASTEST,
        seed: int = 1,
    ) -> Outcome:
        """A run that nothing checks."""
        if self._reset:
            self._harness.reset()
        stimulus.stall = stall
        stimulus.timings = timings_of(stimulus.memories, timing)
        return self._harness.run(stimulus, PATTERNS[stall], seed, stimulus.timings)

    def run(
        self,
        stimulus: Stimulus,
        stall: str = "none",
        timing: MemoryTiming = FASTEST,
        seed: int = 1,
    ) -> Outcome:
        outcome = self.simulate(stimulus, stall, timing, seed)
        assert outcome.failure is None, outcome.failure
        found = self._compare(stimulus, outcome.outputs, self.design.outputs, outcome.cycles_of)
        found += compare_memories(stimulus, outcome)
        assert found == [], found[0]
        return outcome
