"""Operations on a layer's vectors by a core: sums, gated products, positions, norms."""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from golden.algorithms.vectors import (
    OPERATIONS,
    Norm,
    combined,
    normalised,
    pairs_in,
    turned,
    with_pairs,
)
from golden.lm.joint_products import STEPS
from golden.lm.weights import Config
from hw.attention.vector_path import ELEMENTS, PAIRS, VectorPathParameters
from hw.parameters import Parameters, require
from sim.commands.engines.part import RtlPart
from sim.core import payload
from sim.core.stimulus import Outcome, Stimulus
from sim.testbenches.attention import rotary_encoding, vector_path, vector_unit
from sim.testbenches.attention.rotary_encoding import Head
from sim.testbenches.attention.vector_unit import Pairs

P = TypeVar("P", bound=Parameters)

VECTOR_LANES = 8
"""Elements a cycle of sums and gated products, of a core for a language model."""

Run = Callable[[int, Stimulus, str], "Outcome | None"]
"""Runs a token's step, now or later; returns its outcome if that is what goes on.

Its parameters: the token, as its number among those given; the step; and what of the layer it is.
"""


def require_positions(p: VectorPathParameters, config: Config, tokens: int) -> None:
    """Refuse a core that cannot encode the positions of a model's tokens, if it is to.

    :raises ParameterError: naming the parameter to change, or the most tokens.
    """
    if not p.pairs:
        return
    pairs = config.rope_dims // 2
    rule = f"rotary_pairs must be 0 or at least {pairs}, of a head of the model"
    require(p.pairs >= pairs, rule, p.pairs)
    most = p.rotary_encoding.positions
    rule = f"prompt and tokens must be at most the positions that the core encodes, {most}"
    require(tokens <= most, rule, tokens)


@dataclasses.dataclass
class LayerVectors:
    """Steps of one layer that are no products of a matrix; a step for each token.

    p
        The core's units.
    turns
        ``int[pair]``: turns of a head's pairs from one position to the next. They are loaded before
        a step that turns, unless the core has them.
    run
        What a step is given to.
    loaded
        The turns that the core has, after all steps so far; layers on one core share the list.
    """

    p: VectorPathParameters
    turns: np.ndarray
    run: Run
    rng: np.random.Generator
    loaded: list[np.ndarray] = dataclasses.field(default_factory=list)

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
            table = self._table(number)
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

    def _table(self, token: int) -> np.ndarray | None:
        """The turns, if they are to be loaded with the step that needs them.

        In place of others they are loaded by a step before, as heads do not wait for them then.
        """
        if self.loaded and np.array_equal(self.loaded[-1], self.turns):
            return None
        if not self.loaded:
            self.loaded.append(self.turns)
            return self.turns
        self.loaded[:] = [self.turns]
        unit = self.p.rotary_encoding
        self.run(
            token, rotary_encoding.stimulus_of_table(unit, self.turns, tuple(PAIRS)), "turns: "
        )
        return None

    def normalise(self, x: np.ndarray, norm: Norm) -> np.ndarray:
        """``float16``: rows of ``float16 x [token, dim]`` over their root mean square."""
        expected, results = normalised(x, norm), []
        for token, row in enumerate(x):
            stimulus = vector_path.norms(self.p, row[None], norm, [])
            outcome = self.run(token, stimulus, "norm: ")
            if outcome is not None:
                fields = payload.unpack(self.p.norms.output_layout, outcome.outputs["normalised"])
                results.append(fields["y"].astype(np.uint16).view(np.float16))
        return np.stack(results) if results else expected

    def _found(self, outcome: Outcome, stream: str, field: str, lanes: int) -> np.ndarray:
        """``float16``: a field of the beats of a stream."""
        layouts = {
            "elements": lambda: self.p.vector_unit.output_layout,
            "turned": lambda: self.p.rotary_encoding.pairs_layout,
        }
        fields = payload.unpack(layouts[stream](), outcome.outputs[stream])
        bits = np.stack([fields[f"{field}[{lane}]"] for lane in range(lanes)], axis=1)
        return bits.astype(np.uint16).view(np.float16).ravel()


class VectorPart(RtlPart[P]):
    """Products of a layer on a core that also operates on its vectors, if it has units for that.

    ``cycles`` has the numbers of each token's steps; the last is of all operations on its vectors.
    """

    combine: Callable[[str, np.ndarray, np.ndarray], np.ndarray] | None = None
    turn: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    normalise: Callable[[np.ndarray, Norm], np.ndarray] | None = None
    cycles: list[list[int]]
    predicted: list[list[int]] | None = None
    """The cycle model's, of a core that may be later by its memory."""
    _product_steps = len(STEPS)
    """Steps of a token that are products."""
    _latest = 0
    """The first of the tokens that the first step had last."""

    def _add_vectors(
        self, p: VectorPathParameters, turns: np.ndarray, rng: np.random.Generator
    ) -> None:
        vectors = LayerVectors(p, turns, self._vector_step, rng, self._turns)
        self.combine = vectors.combine if p.lanes else None
        self.turn = vectors.turn if p.pairs else None
        self.normalise = vectors.normalise if p.length else None

    @property
    def _vector_runs(self) -> int:
        """Steps of a token: two sums, a gated product; queries, keys; two norms."""
        parts = (3, self.combine), (2, self.turn), (2, self.normalise)
        return sum(count for count, operation in parts if operation is not None)

    def _count(self, tokens: int) -> None:
        """Begin to count the cycles of that many tokens."""
        for counted in (self.cycles, self.predicted):
            while counted is not None and len(counted) < tokens:
                counted.append([0] * (self._product_steps + (self._vector_runs > 0)))

    def _vector_step(self, number: int, stimulus: Stimulus, where: str) -> Outcome | None:
        """A step without products: compared, perhaps later, or only run.

        number
            The token's, among those whose layer begins with the latest first step.
        """
        token = self._latest + number
        self._count(token + 1)

        def run() -> Outcome:
            if self._check:
                outcome = self._compared(token, stimulus, where=where, place=lambda found: where)
                if self.predicted is not None:
                    self.predicted[token][-1] += stimulus.cycles
            else:
                counts = {name: len(beats) for name, beats in stimulus.outputs.items()}
                outcome = self._rtl(token, stimulus.inputs, counts, where=where)
            self.cycles[token][-1] += outcome.cycles
            return outcome

        if not self._check:
            return run()
        self._submit(run)
        return None
