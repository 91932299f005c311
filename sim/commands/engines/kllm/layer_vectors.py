"""Operations on a layer's vectors by KLLM's core: sums, gated products, positions."""

import dataclasses
from collections.abc import Callable

import numpy as np

from golden.algorithms.kllm.vectors import OPERATIONS, combined, pairs_in, turned, with_pairs
from hw.kllm.core.vector_path import ELEMENTS, PAIRS
from hw.kllm.kllm_core import KllmCoreParameters
from sim.core import payload
from sim.core.stimulus import Outcome, Stimulus
from sim.testbenches.attention import rotary_encoding
from sim.testbenches.attention.rotary_encoding import Head
from sim.testbenches.kllm import vector_unit
from sim.testbenches.kllm.vector_unit import Pairs

Run = Callable[[int, Stimulus, str], "Outcome | None"]
"""Runs a token's step, now or later; returns its outcome if that is what goes on.

Its parameters: the token, as its number among those given; the step; and what of the layer it is.
"""


@dataclasses.dataclass
class LayerVectors:
    """Steps of one layer that are no products of a matrix; a step for each token.

    p
        The core.
    turns
        ``int[pair]``: turns of a head's pairs from one position to the next. They are loaded with
        the first step that turns.
    run
        What a step is given to.
    """

    p: KllmCoreParameters
    turns: np.ndarray
    run: Run
    rng: np.random.Generator

    def __post_init__(self):
        self._loaded = False

    def combine(self, op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """As :meth:`golden.lm.model.Llama.combine`."""
        unit, results = self.p.vector_unit, []
        expected = combined(op, a, b)
        for token, (x, y) in enumerate(zip(a, b, strict=True)):
            pair = Pairs(OPERATIONS[op], x.astype(np.float16), y.astype(np.float16))
            streams = tuple(ELEMENTS)
            stimulus = vector_unit.stimulus_of(unit, [pair], self.rng, [], streams)
            outcome = self.run(token, stimulus, f"{op} of two vectors: ")
            if outcome is not None:
                results.append(self._found(outcome, "elements", "y", unit.lanes)[: len(x)])
        return np.array(results, np.float32) if results else expected

    def turn(self, positions: np.ndarray, x: np.ndarray) -> np.ndarray:
        """As :meth:`golden.lm.model.Llama.turn`."""
        unit, results = self.p.rotary_encoding, []
        expected = turned(x, positions, self.turns)
        for number, position in enumerate(positions):
            a, b = pairs_in(x[:, number], self.turns)
            heads = [Head(int(position), *pair) for pair in zip(a, b, strict=True)]
            table = None if self._loaded else self.turns
            self._loaded = True
            stimulus = rotary_encoding.stimulus_of(
                unit, table, heads, self.rng, [], tuple(PAIRS), self.turns
            )
            outcome = self.run(number, stimulus, "positions: ")
            if outcome is not None:
                found = [
                    self._found(outcome, "turned", name, unit.lanes).reshape(len(heads), -1)
                    for name in "ab"
                ]
                results.append(
                    with_pairs(x[:, number], *(pair[:, : len(self.turns)] for pair in found))
                )
        return np.stack(results, axis=1) if results else expected

    def _found(self, outcome: Outcome, stream: str, field: str, lanes: int) -> np.ndarray:
        """``float16``: a field of the beats of a stream."""
        layouts = {
            "elements": lambda: self.p.vector_unit.output_layout,
            "turned": lambda: self.p.rotary_encoding.pairs_layout,
        }
        fields = payload.unpack(layouts[stream](), outcome.outputs[stream])
        bits = np.stack([fields[f"{field}[{lane}]"] for lane in range(lanes)], axis=1)
        return bits.astype(np.uint16).view(np.float16).ravel()
