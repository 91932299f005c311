"""Testbench of the H2O core: rows of q, k and v in, a memory attached, rows of o out."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from golden.attention.decode_core import StepResult
from golden.baseline.h2o_core import H2oCore
from golden.trace import Trace
from hw.attention.streamed_rows import Work
from hw.baseline.h2o_core import H2oCoreParameters
from sim.core.stimulus import Stimulus
from sim.testbenches.decode import DecodeBench, add_layers, random_heads, random_steps


class H2oSteps(DecodeBench[H2oCoreParameters]):
    """Steps of the H2O core; ``model`` is its bit-exact model after them."""

    def __init__(self, parameters: H2oCoreParameters):
        super().__init__(parameters)
        p = parameters
        self.model = H2oCore(p.capacity, p.heads, p.kv_heads, p.d, p.sum_bits, p.position_bits)

    def model_step(self, q, k, v, group: int, **command: Any) -> StepResult:
        return self.model.step(q, k, v, group=group, **command)

    def work_of(self, result: StepResult, heads: int, group: int, command: Mapping) -> Work:
        return Work(self.model.length, heads, group)

    def stored(self) -> np.ndarray:
        return np.stack([self.model.k, self.model.v], axis=1)


class H2oCoreTestbench:
    def default_vectors(self, parameters: H2oCoreParameters) -> int:
        return 64 if parameters.d <= 8 else 24

    def stimulus(
        self, parameters: H2oCoreParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        steps, notes = made(parameters, trace, vectors, np.random.default_rng(seed))
        return steps.stimulus(notes)


def made(
    p: H2oCoreParameters, trace: Trace | None, vectors: int, rng: np.random.Generator
) -> tuple[H2oSteps, list[str]]:
    """Steps from a trace, or at random; notes on the trace."""
    steps = H2oSteps(p)
    if trace is not None:
        target = max(1, min(p.capacity - 1, 24, vectors // 3))
        command = {"target": target, "recent": -(-target // 2)}
        longest = min(2 * target + 4, 1 << p.position_bits)
        return steps, add_layers(steps, trace, vectors, longest, command)
    lengths = (6, 3 * p.capacity, min(2 + (1 << p.position_bits), 256))
    random_steps(steps, vectors - 1, rng, lengths, lambda: limits(p, rng), same_heads=True)
    steps.add_refused(*random_heads(p, rng), restart=True, target=0)
    return steps, []


def limits(p: H2oCoreParameters, rng: np.random.Generator) -> dict[str, int]:
    """A sequence's target, most often small, and how many of the newest tokens are among it."""
    target = int(rng.integers(1, min(p.capacity, int(rng.choice([5, p.capacity])))))
    return {"target": target, "recent": int(rng.integers(0, target + 1))}


testbench = H2oCoreTestbench()
