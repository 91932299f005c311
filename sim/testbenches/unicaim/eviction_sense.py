"""Testbench of the minimum search's sense: steps in, rows out. A transaction is a search."""

from collections.abc import Sequence

import numpy as np

from golden.trace import Trace
from golden.unicaim.charge_accumulator import ChargeAccumulator
from golden.unicaim.eviction_sense import eviction_sense
from hw.unicaim.eviction_sense import EvictionSenseParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.strategies import sometimes
from sim.testbenches.unicaim.operands import pack_bits, real_scores

SHARE, FRACTION, SCORE_BITS = 2, 4, 8


class EvictionSenseTestbench:
    def default_vectors(self, parameters: EvictionSenseParameters) -> int:
        return 96 if parameters.rows <= 16 else 24

    def stimulus(
        self, parameters: EvictionSenseParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        if trace is None:
            rng = np.random.default_rng(seed)
            return stimulus_of(
                parameters, [random_search(parameters.rows, rng) for _ in range(vectors)]
            )
        model = accumulator(parameters.rows)
        scores, notes = real_scores(trace, parameters.rows, vectors)
        searches = []
        for row in scores:
            model.share(row)
            searches.append(model.planes())
        return stimulus_of(parameters, searches, notes)


testbench = EvictionSenseTestbench()


def accumulator(rows: int) -> ChargeAccumulator:
    """An accumulator with all rows in use."""
    model = ChargeAccumulator(rows, SCORE_BITS, FRACTION, SHARE)
    model.used[:] = True
    return model


def random_search(rows: int, rng: np.random.Generator) -> np.ndarray:
    """Bit planes or a discharge, often with equal lines, unused rows, or no line that drops."""
    used = rng.random(rows) < rng.choice([0, 0.2, 1], p=(0.1, 0.3, 0.6))
    width = int(rng.integers(1, 12))
    held = rng.integers(0, 1 << width, rows) | int(rng.integers(0, 1 << width))
    if sometimes(rng, 0.5):
        bits = (held >> np.arange(width)[::-1, None] & 1).astype(bool)
        return np.concatenate([~used[None], bits | ~used])
    return np.arange(rng.integers(1, 12))[:, None] < np.where(used, held, 99)


def stimulus_of(
    p: EvictionSenseParameters, searches: list[np.ndarray], notes: Sequence[str] = ()
) -> Stimulus:
    steps = [np.column_stack([high, np.arange(len(high)) == len(high) - 1]) for high in searches]
    rows = [eviction_sense(high) for high in searches]
    return Stimulus(
        inputs={"i": pack_bits(np.concatenate(steps))},
        outputs={
            "o": payload.pack(
                p.output_layout,
                {
                    "row": np.array([row or 0 for row in rows]),
                    "present": np.array([row is not None for row in rows]),
                },
            )
        },
        transaction_of={"o": np.arange(len(searches))},
        transactions=len(searches),
        cycles=sum(p.cycles(len(high)) for high in searches),
        notes=list(notes),
    )
