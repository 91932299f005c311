"""A configuration in the compiled harness, for the tests of a block."""

from hw.catalogue import Block
from hw.parameters import Parameters
from sim.core.design import Design, generate
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Outcome, Stimulus, compare
from sim.drivers.harness.runner import Harness


class Compiled:
    """Runs stimuli, each from reset, and compares all outputs."""

    def __init__(self, block: Block, parameters: Parameters, design: Design | None = None):
        """`design` in place of the generated one, as of a file of Verilog."""
        self.parameters = parameters
        self._design = design or generate(block, parameters)
        self._harness = Harness(self._design)

    def check(
        self, stimulus: Stimulus, stall: str = "none", timed: bool = True, seed: int = 1
    ) -> Outcome:
        """Run a stimulus under a stall pattern; without stalls it takes its `cycles`, if
        `timed`."""
        self._harness.reset()
        outcome = self._harness.run(stimulus, PATTERNS[stall], seed)
        assert outcome.failure is None
        assert compare(stimulus, outcome.outputs, self._design.outputs, outcome.cycles_of) == []
        assert stall != "none" or not timed or outcome.cycles == stimulus.cycles
        return outcome

    def check_all(
        self, stimulus: Stimulus, timed: bool = True, seed: int = 1
    ) -> dict[str, Outcome]:
        """Run a stimulus under every stall pattern; outcomes by pattern."""
        return {stall: self.check(stimulus, stall, timed, seed) for stall in PATTERNS}
