"""Matrix products of a layer on a block that multiplies the matrices of one input together."""

from typing import TypeVar

from golden.lm.joint_products import STEPS
from hw.parameters import Parameters
from sim.commands.engines.layer_vectors import VectorPart
from sim.commands.engines.part import LayerRun
from sim.core.memory import Memory
from sim.testbenches.memory import NAME

P = TypeVar("P", bound=Parameters)


class JointLayer(VectorPart[P]):
    """Products of one layer, whose vectors share rows of matrices.

    ``cycles`` has a number for each step of a token, and one for the operations on its vectors if
    the block has any; tokens that share rows count with the last of them.
    """

    def __init__(self, run: LayerRun, memories: dict[str, Memory]):
        super().__init__(run, memories)
        self.cycles: list[list[int]] = []
        self._tokens = [0] * len(STEPS)  # that each step has had

    def runs(self, tokens: int) -> int:
        """Each step of each token, and each operation on its vectors."""
        return (len(STEPS) + self._vector_runs) * tokens

    def _begin(self, step: int, vectors: int) -> int:
        """Count tokens that share a step's rows; the number of the last of them."""
        self._tokens[step] += vectors
        self._count(self._tokens[step])
        return self._tokens[step] - 1

    def bytes_moved(self) -> dict[str, int]:
        """Bytes that the block has read; none beside attention, which counts both."""
        use = self._session.uses(contents=False)[NAME] if self._opened else None
        return {"weights_read": use.bytes_read if use else 0}
