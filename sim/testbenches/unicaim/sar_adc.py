"""Testbench of the converter: samples in, codes out. A transaction is a conversion."""

from collections.abc import Sequence

import numpy as np
from amaranth.hdl import unsigned

from golden.trace import Trace
from golden.unicaim.cells import row_scores
from golden.unicaim.sar_adc import sar_adc
from hw.unicaim.sar_adc import SarAdcParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.strategies import sometimes
from sim.testbenches.unicaim.operands import real_levels

D = 64


class SarAdcTestbench:
    def default_vectors(self, parameters: SarAdcParameters) -> int:
        return 256

    def stimulus(
        self, parameters: SarAdcParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        if trace is not None:
            return stimulus_of(parameters, *real_samples(parameters, trace, vectors))
        rng = np.random.default_rng(seed)
        limit = 1 << parameters.sample.width - 1
        samples = rng.integers(-limit, limit, vectors)
        # Half of them where codes change, and the corner cases first.
        step = 1 << parameters.fraction
        edges = (samples // step) * step + step // 2 - rng.integers(0, 2, vectors)
        samples = np.where(sometimes(rng, 0.5, vectors), edges, samples)
        samples = np.where(sometimes(rng, 0.5, vectors), samples >> 1, samples)
        corners = np.array([-limit, limit - 1, 0, -1, limit // 2, -limit // 2])[:vectors]
        samples[: len(corners)] = corners
        return stimulus_of(parameters, samples)


testbench = SarAdcTestbench()


def real_samples(p: SarAdcParameters, trace: Trace, count: int) -> tuple[np.ndarray, list[str]]:
    """Scores of 3-bit keys and queries, spread over the converter's range."""
    keys, queries, notes = real_levels(trace, D, 3, 3, 64)
    scores = row_scores(keys, queries).ravel()
    scores = scores[np.arange(count) % len(scores)]
    limit = (1 << p.bits - 1 + p.fraction) - (1 << p.fraction)
    most = max(1, np.abs(scores).max())
    return np.rint(scores * limit / most).astype(np.int64), notes


def stimulus_of(p: SarAdcParameters, samples: np.ndarray, notes: Sequence[str] = ()) -> Stimulus:
    codes = sar_adc(samples, p.bits, p.fraction)
    return Stimulus(
        inputs={"i": payload.pack(unsigned(p.sample.width), {"payload": samples})},
        outputs={"o": payload.pack(unsigned(p.bits), {"payload": codes})},
        transaction_of={"o": np.arange(len(samples))},
        transactions=len(samples),
        cycles=p.cycles(len(samples)),
        notes=list(notes),
    )
