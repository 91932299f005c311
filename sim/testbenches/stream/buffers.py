"""Testbench of the in-order buffers: the queue and the skid buffer."""

from typing import TYPE_CHECKING

import numpy as np

from sim.core.stimulus import Stimulus
from sim.testbenches.stream.beats import beats

if TYPE_CHECKING:
    from golden.trace import Trace
    from hw.stream.queue import QueueParameters
    from hw.stream.skid_buffer import SkidBufferParameters

    BufferParameters = QueueParameters | SkidBufferParameters


class BufferTestbench:
    """Output beats must equal the input beats, in order; a transaction is one beat."""

    def default_vectors(self, parameters: "BufferParameters") -> int:
        return 256

    def stimulus(
        self, parameters: "BufferParameters", trace: "Trace | None", vectors: int, seed: int
    ) -> Stimulus:
        words, notes = beats(trace, parameters.width, vectors, seed)
        return Stimulus(
            inputs={"i": words},
            outputs={"o": words},
            transaction_of={"o": np.arange(vectors)},
            transactions=vectors,
            cycles=parameters.cycles(vectors),
            notes=notes,
        )
