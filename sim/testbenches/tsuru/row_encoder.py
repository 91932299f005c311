"""Testbench of the row encoder: rotated rows in, encoded rows out. A transaction is a row."""

import numpy as np

from golden.trace import Trace
from golden.tsuru.rotation import rotate
from golden.tsuru.row_encoder import encode
from hw.tsuru.row_encoder import RowEncoderParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.tsuru.operands import random_rows, trace_rows


class RowEncoderTestbench:
    def default_vectors(self, parameters: RowEncoderParameters) -> int:
        return 200 if parameters.d <= 16 else 24

    def stimulus(
        self, parameters: RowEncoderParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        if trace is None:
            return stimulus_of(p, random_rows(p.d, vectors, np.random.default_rng(seed)), [])
        x, notes = trace_rows(trace, p.d, vectors)
        return stimulus_of(p, rotate(x), [*notes, "Rows are rotated first."])


testbench = RowEncoderTestbench()


def stimulus_of(p: RowEncoderParameters, x: np.ndarray, notes: list[str]) -> Stimulus:
    """Rows x float16[row, d]."""
    rows = encode(x, p.fraction)
    fields = {"fine.codes": rows.fine, "fine.scale": rows.scale, "search": rows.search}
    return Stimulus(
        inputs={"i": payload.pack(p.input_layout, {"x": x.view(np.uint16)})},
        outputs={"o": payload.pack(p.output_layout, fields)},
        transaction_of={"o": np.arange(len(x))},
        transactions=len(x),
        cycles=p.cycles(len(x)),
        notes=notes,
    )
