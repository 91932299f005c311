"""Testbench of the top-k sense: k and steps in, answers and addresses out.

A transaction is a search. Discharges, as of the cell array, and binary searches, as of the digital
array, take turns.
"""

import numpy as np
from amaranth.hdl import unsigned

from golden.trace import Trace
from golden.unicaim.cell_array import discharge
from golden.unicaim.digital_array import search
from golden.unicaim.topk_sense import topk_sense
from hw.unicaim.topk_sense import TopkSenseParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.strategies import sometimes
from sim.testbenches.unicaim.operands import pack_bits, real_scores

LIMIT = 64  # of real scores


class TopkSenseTestbench:
    def default_vectors(self, parameters: TopkSenseParameters) -> int:
        return 96 if parameters.rows <= 16 else 24

    def stimulus(
        self, parameters: TopkSenseParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        searches = Searches(parameters)
        if trace is None:
            random_searches(searches, vectors, np.random.default_rng(seed))
        else:
            scores, searches.notes = real_scores(trace, parameters.rows, vectors)
            for number, row in enumerate(scores):
                used = np.arange(parameters.rows) < parameters.rows * 3 // 4 + number
                searches.add(row, used, max(1, parameters.rows // 8), LIMIT)
        return searches.stimulus()


testbench = TopkSenseTestbench()


class Searches:
    """Searches in order, and the answers and addresses that they lead to."""

    def __init__(self, parameters: TopkSenseParameters):
        self.parameters = parameters
        self.notes: list[str] = []
        self.addresses: list[list[int]] = []
        self.lengths: list[int] = []
        self._k: list[int] = []
        self._steps: list[np.ndarray] = []
        self._answers: list[np.ndarray] = []

    def add(self, scores: np.ndarray, used: np.ndarray, k: int, limit: int) -> None:
        """A search over ``scores`` [rows] within ``limit``; every other one is a discharge."""
        stops = len(self._k) % 2 == 1
        high, too_many = (discharge if stops else search)(scores, used, k, limit)
        last = (np.arange(len(high)) == len(high) - 1) & (not stops)
        self._steps.append(np.column_stack([high, last, np.full(len(high), stops)]))
        self._answers.append(too_many)
        self._k.append(k)
        self.addresses.append(topk_sense(high, k, self.parameters.fill))
        self.lengths.append(len(high))

    def stimulus(self) -> Stimulus:
        p = self.parameters
        sizes = [max(1, len(addresses)) for addresses in self.addresses]
        present = np.repeat([bool(addresses) for addresses in self.addresses], sizes)
        rows = np.concatenate([addresses or [0] for addresses in self.addresses])
        last = np.concatenate([np.arange(size) == size - 1 for size in sizes])
        searches = np.arange(len(sizes))
        cycles = [p.cycles(n, len(a)) for n, a in zip(self.lengths, self.addresses, strict=True)]
        return Stimulus(
            inputs={
                "k": payload.pack(unsigned(p.rows.bit_length()), {"payload": np.array(self._k)}),
                "i": pack_bits(np.concatenate(self._steps)),
            },
            outputs={
                "too_many": payload.pack(unsigned(1), {"payload": np.concatenate(self._answers)}),
                "o": payload.pack(p.output_layout, {"row": rows, "present": present, "last": last}),
            },
            transaction_of={
                "too_many": np.repeat(searches, self.lengths),
                "o": np.repeat(searches, sizes),
            },
            transactions=len(sizes),
            cycles=sum(cycles),
            notes=self.notes,
        )


def random_searches(searches: Searches, count: int, rng: np.random.Generator) -> None:
    """Any scores, mostly few different ones, rows in use, and k of all sizes."""
    rows = searches.parameters.rows
    for _ in range(count):
        limit = int(rng.choice([1, 3, 12]))
        most = min(limit, int(rng.integers(0, 5)))
        scores = rng.integers(-most, most + 1, rows)
        if sometimes(rng, 0.2):
            scores[:] = rng.choice([-limit, limit])
        used = rng.random(rows) < rng.choice([0, 0.2, 0.9, 1], p=(0.1, 0.2, 0.3, 0.4))
        any_k = int(rng.integers(0, rows + 1))
        k = int(rng.choice([0, 1, rows, any_k], p=(0.05, 0.15, 0.1, 0.7)))
        searches.add(scores, used, k, limit)
