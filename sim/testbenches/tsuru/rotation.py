"""Testbench of the rotation: rows in, rotated rows out. A transaction is a row."""

import numpy as np

from golden.trace import Trace
from golden.tsuru.rotation import rotate
from hw.tsuru.rotation import RotationParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.tsuru.operands import random_rows, trace_rows


class RotationTestbench:
    def default_vectors(self, parameters: RotationParameters) -> int:
        return 200 if parameters.d <= 16 else 24

    def stimulus(
        self, parameters: RotationParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p, rng = parameters, np.random.default_rng(seed)
        notes: list[str] = []
        if trace is None:
            x = random_rows(p.d, vectors, rng)
        else:
            x, notes = trace_rows(trace, p.d, vectors)
        # Keys and queries in turn, as those of the trace are.
        back = np.arange(len(x)) % 2 if trace is not None else rng.integers(0, 2, len(x))
        return stimulus_of(p, x, back, notes)


testbench = RotationTestbench()


def stimulus_of(
    p: RotationParameters, x: np.ndarray, back: np.ndarray, notes: list[str]
) -> Stimulus:
    """Rows x float16[row, d], each with its `back`."""
    fields = {"x": x.view(np.uint16)} | ({"back": back} if p.odd else {})
    o = rotate(x, back.astype(bool)).view(np.uint16)
    return Stimulus(
        inputs={"i": payload.pack(p.input_layout, fields)},
        outputs={"o": payload.pack(p.output_layout, {"x": o})},
        transaction_of={"o": np.arange(len(x))},
        transactions=len(x),
        cycles=p.cycles(len(x)),
        notes=notes,
    )
