"""Testbench of the choice: estimates in, rows and the rest's score out, a batch a transaction."""

import dataclasses

import numpy as np

from golden.trace import Trace
from golden.tsuru.row_choice import Chosen, choose
from golden.tsuru.row_format import SEARCH_ROWS
from golden.tsuru.row_search import FRACTION, LARGEST
from golden.tsuru.stored_rows import PLANES
from hw.tsuru.row_choice import RowChoiceParameters
from sim.core.stimulus import Stimulus
from sim.core.streams import Streams, last_of
from sim.testbenches.strategies import pick, sometimes
from sim.testbenches.tsuru.row_search import real_batches, tiles_of

THRESHOLDS = (0, 64, 500, 750, 900, 4000, (1 << 14) - 1)
"""Of real batches, in units of 2^-FRACTION: from none to all rows."""


@dataclasses.dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates int64[heads, slots], which slots are a row's, and the threshold."""

    e: np.ndarray
    present: np.ndarray
    threshold: int

    def chosen(self, p: RowChoiceParameters) -> Chosen:
        """By the bit-exact model."""
        always = np.arange(self.e.shape[1]) < p.sinks * PLANES
        always[np.flatnonzero(self.present)[-1]] = True
        return choose(self.e, self.present, always, self.threshold, p.sum_bits)


class RowChoiceTestbench:
    def default_vectors(self, parameters: RowChoiceParameters) -> int:
        return 60 if parameters.capacity <= 64 else 12

    def stimulus(
        self, parameters: RowChoiceParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p, rng = parameters, np.random.default_rng(seed)
        notes: list[str] = []
        if trace is None:
            batches = [random_estimates(p, rng) for _ in range(vectors)]
        else:
            found, notes = real_batches(p, trace, vectors)
            thresholds = np.resize(THRESHOLDS, len(found)).tolist()
            batches = [
                Estimates(*batch.estimates(p), threshold)
                for batch, threshold in zip(found, thresholds, strict=True)
            ]
        return stimulus_of(p, batches, rng, notes)


testbench = RowChoiceTestbench()


def random_estimates(p: RowChoiceParameters, rng: np.random.Generator) -> Estimates:
    """Any heads and slots; estimates near each other, far apart, of any bits, or rising."""
    heads = int(rng.integers(1, p.parallel + 1))
    most = p.rows if sometimes(rng, 0.2) else min(p.rows, 40)
    rows = int(rng.integers(1, most + 1))
    slots = rows + (PLANES - 1) * min(rows, p.sinks)
    present = np.ones(slots, bool)
    planes = min(slots, p.sinks * PLANES)
    present[:planes] = np.arange(planes) % PLANES == 0
    kind = pick(rng, {"near": 3, "far": 2, "bits": 1, "rising": 1, "equal": 1})
    if kind == "bits":
        e = rng.integers(-LARGEST - 1, LARGEST + 1, (heads, slots))
    elif kind == "equal":
        e = np.full((heads, slots), rng.choice([-LARGEST - 1, -70, 0, 63, LARGEST]))
    else:
        spread = {"near": 2, "far": 20, "rising": 1}[kind] * (1 << FRACTION)
        e = (rng.standard_normal((heads, slots)) * spread).astype(np.int64)
        e += int(rng.integers(-4000, 4000))
        if kind == "rising":
            e += np.arange(slots) * int(rng.integers(1, 200))
    e = np.clip(e, -LARGEST - 1, LARGEST) * present
    threshold = int(rng.choice([0, 200, 700, 2000, (1 << 14) - 1, int(rng.integers(0, 1 << 14))]))
    return Estimates(e, present, threshold)


def stimulus_of(
    p: RowChoiceParameters, batches: list[Estimates], rng: np.random.Generator, notes: list[str]
) -> Stimulus:
    """Estimates of slots without a row, and of heads that a batch lacks, are of any bits."""
    inputs = Streams({"batch": p.choice_layout, "i": p.tile_layout})
    outputs = Streams({"o": p.rows_layout, "rest": p.rest_layout})
    counts = []
    for number, batch in enumerate(batches):
        heads, slots = batch.e.shape
        chosen = batch.chosen(p)
        fields = {"heads": heads, "slots": slots, "threshold": batch.threshold}
        inputs.add("batch", number, fields)
        any_bits = rng.integers(-LARGEST - 1, LARGEST + 1, (p.parallel, slots))
        any_bits[:heads] = np.where(batch.present, batch.e, any_bits[:heads])
        tiles = tiles_of(p, any_bits, np.ones(slots, bool))
        tiles["present"] = tiles_of(p, batch.e, batch.present)["present"]
        inputs.add("i", number, tiles)
        of_slots = np.flatnonzero(chosen.slots)
        rows = of_slots[of_slots >= p.sinks * PLANES] - (PLANES - 1) * p.sinks
        if len(rows):
            outputs.add("o", number, {"row": rows, "last": last_of([len(rows)])})
        rest = np.zeros((1, p.parallel), np.float16)
        rest[0, :heads] = chosen.rest
        outputs.add("rest", number, {"": rest})
        tiles_count = -(-slots // SEARCH_ROWS)
        whole = np.zeros(tiles_count * SEARCH_ROWS, bool)
        whole[:slots] = chosen.slots
        counts.append(whole.reshape(tiles_count, SEARCH_ROWS).sum(axis=1).tolist())
    return Stimulus(
        inputs=inputs.packed(),
        outputs=outputs.packed(),
        transaction_of=outputs.owners(),
        transactions=len(batches),
        cycles=p.cycles(counts),
        notes=notes,
    )
