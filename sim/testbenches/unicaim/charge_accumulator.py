"""Testbench of the accumulator: scores and new rows in, searches out.

A transaction is a search and what precedes it: rows that start, and scores.
"""

from collections.abc import Sequence

import numpy as np

from golden.trace import Trace
from golden.unicaim.charge_accumulator import ChargeAccumulator
from hw.unicaim.charge_accumulator import AccumulatorOp, ChargeAccumulatorParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.strategies import sometimes
from sim.testbenches.unicaim.operands import pack_bits, real_scores


class ChargeAccumulatorTestbench:
    def default_vectors(self, parameters: ChargeAccumulatorParameters) -> int:
        return 64 if parameters.rows <= 16 else 16

    def stimulus(
        self,
        parameters: ChargeAccumulatorParameters,
        trace: Trace | None,
        vectors: int,
        seed: int,
    ) -> Stimulus:
        if trace is None:
            return random_beats(parameters, vectors, np.random.default_rng(seed)).stimulus()
        return real_beats(parameters, trace, vectors).stimulus()


testbench = ChargeAccumulatorTestbench()


class Beats:
    """Beats in order, and the searches that they lead to."""

    def __init__(self, parameters: ChargeAccumulatorParameters, notes: Sequence[str] = ()):
        p = self.parameters = parameters
        self._models = [
            ChargeAccumulator(p.rows, p.score_bits, p.fraction, p.share) for _ in range(p.contexts)
        ]
        self.context = 0
        """Context of the beats to come."""
        self.notes = list(notes)
        self.history: list[np.ndarray] = []
        self._beats: list[tuple] = []
        self._values: list[np.ndarray] = []
        self._searches: list[np.ndarray] = []
        self._cycles = 0

    @property
    def model(self) -> ChargeAccumulator:
        return self._models[self.context]

    def _add(self, op: AccumulatorOp, row: int = 0, mean: bool = False, values=0) -> None:
        self._beats.append((self.context, op, row, int(mean)))
        self._values.append(np.broadcast_to(values, self.parameters.rows))
        self._cycles += self.parameters.cycles(op, mean)

    def share(self, values: np.ndarray) -> None:
        self.model.share(values)
        self.history.append(self.model.held[:4].copy())
        self._add(AccumulatorOp.SHARE, values=values)

    def start(self, row: int, mean: bool) -> None:
        self.model.start(row, mean)
        self._add(AccumulatorOp.START, row, mean)

    def clear(self) -> None:
        self.model.clear()
        self._add(AccumulatorOp.CLEAR)

    def search(self) -> None:
        self._searches.append(self.model.planes())
        self._add(AccumulatorOp.SEARCH)

    def stimulus(self) -> Stimulus:
        p = self.parameters
        context, op, row, mean = np.array(self._beats).T
        last = np.arange(p.planes) == p.planes - 1
        fields = {"op": op, "row": row, "mean": mean, "values": np.array(self._values)}
        if p.contexts > 1:
            fields["context"] = context
        return Stimulus(
            inputs={"i": payload.pack(p.input_layout, fields)},
            outputs={
                "o": pack_bits(
                    np.concatenate([np.column_stack([high, last]) for high in self._searches])
                )
            },
            transaction_of={"o": np.repeat(np.arange(len(self._searches)), p.planes)},
            transactions=len(self._searches),
            cycles=self._cycles,
            notes=self.notes,
        )


def real_beats(p: ChargeAccumulatorParameters, trace: Trace, steps: int) -> Beats:
    """All rows in use, then every step evicts one row in turn and adds up a query's scores."""
    scores, notes = real_scores(trace, p.rows, steps)
    limit = (1 << p.score_bits - 1) - 1
    scores = np.clip(scores, -limit, limit)
    beats = Beats(p, notes)
    for row in range(p.rows):
        beats.start(row, mean=False)
    for number, values in enumerate(scores):
        beats.start(number % p.rows, mean=number % 2 == 0)
        beats.share(values)
        beats.search()
    return beats


def random_beats(p: ChargeAccumulatorParameters, searches: int, rng: np.random.Generator) -> Beats:
    """Any scores and rows, with extreme scores, and means of one, some and no rows."""
    beats = Beats(p)
    low, high = -(1 << p.score_bits - 1), (1 << p.score_bits - 1) - 1
    for _ in range(searches):
        beats.context = int(rng.integers(p.contexts))
        if sometimes(rng, 0.1):
            beats.clear()
        for _ in range(rng.choice([0, 1, 2, min(p.rows, 16)])):
            beats.start(int(rng.integers(p.rows)), mean=bool(sometimes(rng, 0.6)))
        for _ in range(rng.choice([0, 1, 3, 12])):
            values = rng.integers(low, high + 1, p.rows)
            if sometimes(rng, 0.3):
                values = np.full(p.rows, rng.choice([low, high, 0, -1]))
            beats.share(values)
        beats.search()
    return beats
