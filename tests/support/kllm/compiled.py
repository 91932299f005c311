"""A configuration in the compiled harness, for the tests of a block."""

import dataclasses

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
        self,
        stimulus: Stimulus,
        stall: str = "none",
        timed: bool = True,
        seed: int = 1,
        fresh: bool = True,
    ) -> Outcome:
        """Run a stimulus under a stall pattern; without stalls it takes its cycles, if `timed`.

        It begins with a reset, of a new model or, if not `fresh`, of that of the run before it.
        """
        if fresh:
            self._harness.reset()
        outcome = self._harness.run(stimulus, PATTERNS[stall], seed)
        assert outcome.failure is None
        assert compare(stimulus, outcome.outputs, self._design.outputs, outcome.cycles_of) == []
        assert stall != "none" or not timed or stimulus.wrong_cycles(outcome) is None
        return outcome

    def check_after_a_cut(self, long: Stimulus, beats: int, stall: str, stimulus: Stimulus) -> None:
        """Check a stimulus that begins with a reset in the middle of another.

        beats
            Of each output of `long` that are awaited. A few more are accepted; then it stalls.
        """
        self._harness.reset()
        cut = {name: expected[:beats] for name, expected in long.outputs.items()}
        outcome = self._harness.run(dataclasses.replace(long, outputs=cut), PATTERNS[stall], 1)
        missing = {
            name: len(long.outputs[name]) - len(got) for name, got in outcome.outputs.items()
        }
        assert max(missing.values()) > 0, "the run was not cut short"
        self.check(stimulus, fresh=False)

    def check_all(
        self, stimulus: Stimulus, timed: bool = True, seed: int = 1
    ) -> dict[str, Outcome]:
        """Run a stimulus under every stall pattern; outcomes by pattern."""
        return {stall: self.check(stimulus, stall, timed, seed) for stall in PATTERNS}
