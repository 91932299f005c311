"""Testbench of the dense core: rows of q, k and v in, a memory attached, rows of o out."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from golden.attention.decode_core import StepResult
from golden.baseline.dense_core import DenseCore
from golden.trace import Trace
from hw.attention.streamed_rows import Work
from hw.baseline.dense_core import DenseCoreParameters
from sim.core.stimulus import Stimulus
from sim.testbenches.decode import DecodeBench, add_layers, random_steps


class DenseSteps(DecodeBench[DenseCoreParameters]):
    """Steps of the dense core; ``model`` is its bit-exact model after them."""

    def __init__(self, parameters: DenseCoreParameters):
        super().__init__(parameters)
        p = parameters
        self.model = DenseCore(p.capacity, p.heads, p.kv_heads, p.d)

    def model_step(self, q, k, v, group: int, **command: Any) -> StepResult:
        return self.model.step(q, k, v, group=group, **command)

    def work_of(self, result: StepResult, heads: int, group: int, command: Mapping) -> Work:
        return Work(self.model.length, heads, group)

    def stored(self) -> np.ndarray:
        return np.stack([self.model.k, self.model.v], axis=1)


class DenseCoreTestbench:
    def default_vectors(self, parameters: DenseCoreParameters) -> int:
        return 48 if parameters.d <= 8 else 12

    def stimulus(
        self, parameters: DenseCoreParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        steps, notes = DenseSteps(p), []
        if trace is None:
            # Some sequences have more tokens than the memory has rows.
            random_steps(steps, vectors, np.random.default_rng(seed), (4, 12, p.capacity + 3))
        else:
            notes = add_layers(steps, trace, vectors, min(p.capacity, 24))
        return steps.stimulus(notes)


testbench = DenseCoreTestbench()
