"""Testbench of the sixth design: queries and codes of new rows in, a memory, rows of o out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from golden.attention.decode_core import StepResult
from golden.trace import Trace
from golden.tsuru.row_format import SEARCH_ROWS
from golden.tsuru.stored_rows import NewRow
from golden.tsuru.tsuru_core import TsuruCore
from hw.tsuru.tsuru_core import TsuruCoreParameters, Work
from sim.core.stimulus import Stimulus
from sim.core.streams import Streams
from sim.testbenches.decode import DecodeBench, layers_of, random_steps
from sim.testbenches.tsuru.row_search import rotated

THRESHOLD = 750
"""3e-4, in units of 1/64 octave."""
REAL_THRESHOLDS = (270, 430, THRESHOLD)
"""Thresholds for layers of the trace: 5 %, 1 %, 0.03 %."""
THRESHOLDS = (0, 64, 130, 200, 270, 430, THRESHOLD, (1 << 14) - 1)
"""Of random sequences: from none but sinks and the newest row to all rows."""


class TsuruSteps(DecodeBench[TsuruCoreParameters]):
    """Steps of the core with rotated rows; ``model`` is its bit-exact model after them."""

    def __init__(self, parameters: TsuruCoreParameters):
        super().__init__(parameters)
        p = parameters
        self.model = TsuruCore(
            p.capacity,
            p.heads,
            p.kv_heads,
            p.d,
            parallel=p.parallel,
            sinks=p.sinks,
            query_bits=p.query_bits,
            fractions=(p.key_fraction, p.value_fraction),
        )

    def model_step(self, q, k, v, group: int, **command: Any) -> StepResult:
        return self.model.step(q, k, v, group=group, **command)

    def offer_rows(self, number: int, q, k, v) -> None:
        offer_codes(self._inputs, number, q, self.model.new)

    def work_of(self, result: StepResult, heads: int, group: int, command: Mapping) -> Work:
        chosen = []
        for slots in self.model.chosen:
            whole = np.zeros(-(-len(slots) // SEARCH_ROWS) * SEARCH_ROWS, int)
            whole[: len(slots)] = slots
            chosen.append(whole.reshape(-1, SEARCH_ROWS).sum(axis=1).tolist())
        return Work(self.model.length, heads, group, chosen)

    def stored(self) -> np.ndarray:
        return self.model.rows.words.view(np.float16)


def offer_codes(inputs: Streams, number: int, q: np.ndarray, new: Sequence[NewRow]) -> None:
    """Queries ``[heads, d]`` of a command, and each kv head's words."""
    inputs.add("q", number, {"": q})
    inputs.add("kv", number, {"": np.concatenate([row.words for row in new])})


class TsuruCoreTestbench:
    def default_vectors(self, parameters: TsuruCoreParameters) -> int:
        return 48 if parameters.d <= 8 else 12

    def stimulus(
        self, parameters: TsuruCoreParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        steps, notes = TsuruSteps(p), []
        if trace is None:
            rng = np.random.default_rng(seed)
            # Some sequences have more tokens than fit.
            random_steps(
                steps,
                vectors,
                rng,
                (4, 12, p.capacity + 3),
                lambda: {"threshold": int(rng.choice(THRESHOLDS))},
            )
        else:
            notes = add_layers(steps, trace, vectors)
        return steps.stimulus(notes)


testbench = TsuruCoreTestbench()


def add_layers(bench: TsuruSteps, trace: Trace, count: int) -> list[str]:
    """Add `count` steps: the first tokens of the trace's layers in turn, rotated."""
    p = bench.parameters
    q, k, v, notes = layers_of(p, trace)
    k = k.astype(np.float64)
    k -= k.mean(axis=2, keepdims=True)
    length = min(q.shape[2], p.capacity, max(16, count // len(REAL_THRESHOLDS)))
    for step in range(count):
        sequence, token = divmod(step, length)
        layer = sequence % len(q)
        rows = (rotated(x[layer, :, token]) for x in (q, k, v))
        threshold = REAL_THRESHOLDS[sequence % len(REAL_THRESHOLDS)]
        bench.add(*rows, restart=token == 0, threshold=threshold)
    return [*notes, "Rows are rotated, and K is less its mean."]
