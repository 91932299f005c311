"""A configuration in the compiled harness, for the tests of a block."""

from hw.catalogue import Block
from hw.parameters import Parameters
from sim.bench import Job, Played, compare
from sim.design import generate
from sim.harness import Harness
from sim.stall import PATTERNS


class Compiled:
    """Plays jobs, each from reset, and compares all that comes out."""

    def __init__(self, block: Block, parameters: Parameters):
        self.parameters = parameters
        self._design = generate(block, parameters)
        self._harness = Harness(self._design)

    def check(self, job: Job, stall: str, timed: bool = True) -> Played:
        """Play a job under a stall pattern; without stalls it takes its `cycles`, if `timed`."""
        self._harness.reset()
        played = self._harness.play(job, PATTERNS[stall], seed=1)
        assert played.failure is None
        assert compare(job, played.outputs, self._design.outputs, played.cycles_of) == []
        assert stall != "none" or not timed or played.cycles == job.cycles
        return played
