"""Matrix products of a layer on a block that multiplies the matrices of one input together."""

from typing import TypeVar

from golden.lm.joint_products import STEPS
from hw.parameters import Parameters
from sim.commands.engines.part import LayerRun, RtlPart
from sim.core.memory import Memory
from sim.testbenches.memory import NAME

P = TypeVar("P", bound=Parameters)


class JointLayer(RtlPart[P]):
    """Products of one layer, whose vectors share rows of matrices; other work is the host's.

    ``cycles`` has four numbers a token, one for each step; tokens that share rows count with the
    last of them.
    """

    combine = None
    turn = None

    def __init__(self, run: LayerRun, memories: dict[str, Memory]):
        super().__init__(run, memories)
        self.cycles: list[list[int]] = []
        self._tokens = [0] * len(STEPS)  # that each step has had

    def runs(self, tokens: int) -> int:
        """Each step of each token."""
        return len(STEPS) * tokens

    def _begin(self, step: int, vectors: int) -> int:
        """Count tokens that share a step's rows; the number of the last of them."""
        self._tokens[step] += vectors
        while len(self.cycles) < self._tokens[step]:
            self.cycles.append([0] * len(STEPS))
        return self._tokens[step] - 1

    def bytes_moved(self) -> dict[str, int]:
        """Bytes that the block has read; none beside attention, which counts both."""
        use = self._session.uses(contents=False)[NAME] if self._opened else None
        return {"weights_read": use.bytes_read if use else 0}
