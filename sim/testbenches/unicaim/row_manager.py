"""Testbench of the row manager: beats and rows to evict in, rows out. A transaction is a TAKE."""

from collections.abc import Sequence

import numpy as np

from golden.trace import Trace
from golden.unicaim.charge_accumulator import ChargeAccumulator
from golden.unicaim.eviction_sense import eviction_sense
from golden.unicaim.row_manager import RowManager
from hw.unicaim.row_manager import RowManagerParameters, RowOp
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.strategies import sometimes
from sim.testbenches.unicaim.operands import real_scores


class RowManagerTestbench:
    def default_vectors(self, parameters: RowManagerParameters) -> int:
        return 4 * parameters.rows * parameters.contexts + 64

    def stimulus(
        self, parameters: RowManagerParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        if trace is None:
            return random_beats(parameters, vectors, np.random.default_rng(seed)).stimulus()
        return real_beats(parameters, trace, vectors).stimulus()


testbench = RowManagerTestbench()


class Beats:
    """Beats in order, and the rows that they lead to.

    Rows to evict are offered in the order in which beats consume them, as early as the manager
    accepts them: results depend neither on their stalls nor on the beats' stalls.
    """

    def __init__(self, parameters: RowManagerParameters, notes: Sequence[str] = ()):
        self.parameters, self.notes = parameters, list(notes)
        self.models = [RowManager(parameters.rows) for _ in range(parameters.contexts)]
        self.consecutive = 0
        self._consumer: int | None = None  # the last beat's context, if it consumed a row
        self._beats: list[tuple] = []
        self._evict: list[tuple] = []
        self._rows: list[tuple] = []

    def take(self, context: int, evict: int) -> int:
        """A new token; all rows in use, it overwrites `evict`. Returns its row."""
        self._beat(context, RowOp.TAKE, evict)
        self._rows.append(self.models[context].take(evict))
        return self._rows[-1][0]

    def clear(self, context: int, evict: int) -> None:
        """No row is in use any more; with all rows in use, `evict` is dropped."""
        self._beat(context, RowOp.CLEAR, evict)
        self.models[context].clear()

    def _beat(self, context: int, op: RowOp, evict: int) -> None:
        full = self.models[context].full
        if full:
            self._evict.append((context, evict))
        self.consecutive += full and self._consumer == context
        self._consumer = context if full else None
        self._beats.append((context, op))

    def stimulus(self) -> Stimulus:
        p = self.parameters
        beats = np.array(self._beats, int).reshape(-1, 2)
        evict = np.array(self._evict, int).reshape(-1, 2)
        inputs, rows_to_evict = {"op": beats[:, 1]}, {"row": evict[:, 1]}
        if p.contexts > 1:
            inputs["context"], rows_to_evict["context"] = beats[:, 0], evict[:, 0]
        row, evicts, full = np.array(self._rows, int).T
        fields = {"row": row, "evicts": evicts, "full": full}
        return Stimulus(
            inputs={
                "i": payload.pack(p.input_layout, inputs),
                "evict": payload.pack(p.evict_layout, rows_to_evict),
            },
            outputs={"o": payload.pack(p.output_layout, fields)},
            transaction_of={"o": np.arange(len(row))},
            transactions=len(row),
            cycles=p.cycles(len(beats), self.consecutive),
            notes=self.notes,
        )


def real_beats(p: RowManagerParameters, trace: Trace, tokens: int) -> Beats:
    """Tokens of every context in turn; evicted is the row of the smallest accumulated score."""
    scores, notes = real_scores(trace, p.rows, tokens)
    beats = Beats(p, notes)
    accumulators = [ChargeAccumulator(p.rows, 8, 8, 4) for _ in range(p.contexts)]
    for number, values in enumerate(scores):
        context = number % p.contexts
        accumulator = accumulators[context]
        evict = 0
        if beats.models[context].full:
            found = eviction_sense(accumulator.planes())
            assert found is not None
            evict = found
        accumulator.start(beats.take(context, evict), mean=True)
        accumulator.share(values)
    return beats


def random_beats(p: RowManagerParameters, tokens: int, rng: np.random.Generator) -> Beats:
    """Tokens of any context, alone or in runs, until arrays are full and beyond, and CLEARs."""
    beats = Beats(p)
    taken = 0
    while taken < tokens:
        context = int(rng.integers(p.contexts))
        if sometimes(rng, 0.5 / p.rows):
            beats.clear(context, int(rng.integers(p.rows)))
        most = 2 * p.rows if sometimes(rng, 0.1) else 4
        for _ in range(min(int(rng.integers(1, most + 1)), tokens - taken)):
            beats.take(context, int(rng.integers(p.rows)))
            taken += 1
    return beats
