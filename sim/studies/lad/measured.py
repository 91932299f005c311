"""Cycles of a head-step of LAD's tile in compiled RTL."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from hw.lad.tile_parameters import LadTileParameters
from sim.core.design import Design
from sim.core.memory import FASTEST, timings_of
from sim.core.stalls import PATTERNS
from sim.core.stimulus import compare, compare_memories
from sim.core.tools import ToolError
from sim.drivers.harness.runner import Harness
from sim.testbenches.lad.lad_tile import Tokens
from sim.testbenches.memory import NAME as MEMORY

STEPS = 3
"""Tokens in a row that are run at each number of positions."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """A head-step, averaged over the tokens and heads of one layer.

    positions
        At the first token.
    cycles
        From a head's report to the next one's, within a token.
    port
        Cycles of these in which a row is read or written.
    active, large, updated
        |J|, |M| and |U|.
    """

    positions: int
    cycles: float
    port: float
    active: float
    large: float
    updated: float


def measure(
    harness: Harness,
    parameters: LadTileParameters,
    design: Design,
    layer: tuple[np.ndarray, np.ndarray, np.ndarray],
    positions: Sequence[int],
) -> Iterator[Measured]:
    """Steps of a layer's q, k and v [heads, tokens, d] at these `positions`, ascending.

    The tokens before are left to the exact model, and the RTL begins on the memory they leave.

    :raises ToolError: if an output or a row of the memory is wrong.
    """
    q, k, v = layer
    tokens, done = Tokens(parameters), 0
    for n in positions:
        for t in range(done, n - 1 + STEPS):
            if t == n - 1:
                tokens.join()
            tokens.add(q[:, t], k[:, t], v[:, t], t + 1, restart=t == 0)
        done = n - 1 + STEPS
        stimulus = tokens.stimulus([])
        harness.reset()
        timings = timings_of(stimulus.memories, FASTEST)
        outcome = harness.run(stimulus, PATTERNS["none"], 1, timings)
        wrong: object = outcome.failure
        wrong = wrong or compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of)
        wrong = wrong or compare_memories(stimulus, outcome) or stimulus.wrong_cycles(outcome)
        if wrong:
            raise ToolError(f"{n} positions: {wrong}")
        ends = np.asarray(outcome.cycles_of["report"]).reshape(STEPS, len(q))
        took = np.asarray(outcome.memories[MEMORY].accepted)
        starts, stops = ends[:, :-1].ravel(), ends[:, 1:].ravel()
        pairs = list(zip(starts, stops, strict=True))
        reports = [step.report for found in tokens.results for step in found[1:]]
        yield Measured(
            positions=n,
            cycles=float(np.mean(stops - starts)),
            port=float(np.mean([((took >= a) & (took < b)).sum() for a, b in pairs])),
            **{
                name: float(np.mean([report[name] for report in reports]))
                for name in ("active", "large", "updated")
            },
        )
