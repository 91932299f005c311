"""Matrix products of a language model on LAD's tile, one tile a layer (LAD, IV-A)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from golden.algorithms.lad.tile_model import TileLlama
from golden.algorithms.vectors import turns_of_layer
from golden.lm.joint_products import NORMED, STEPS, JointProducts
from golden.lm.model import Llama
from golden.lm.tokenizer import Tokenizer
from golden.lm.weights import Config, matrix_shapes
from hw.lad.tile_parameters import PIECES, VPUS, LadTileParameters
from hw.parameters import require
from sim.commands.engines.lad.attention import LadAttention, LadEngine, with_matrices
from sim.commands.engines.layer_vectors import VECTOR_LANES, require_positions
from sim.commands.engines.part import LayerRun, RtlPart
from sim.commands.engines.products import JointLayer
from sim.commands.engines.workers import Submit, at_once
from sim.core import payload
from sim.core.design import Design
from sim.core.memory import FASTEST, MemoryTiming
from sim.testbenches.decode import input_streams, offer
from sim.testbenches.lad.lad_tile import Tokens


class LadLayer(JointLayer[LadTileParameters]):
    """Products of one layer, by RTL and by the bit-exact model.

    Up to six tokens of a prompt share the rows of the matrices.

    attention
        The layer's attention on the same tile, if it is.
    """

    block = "lad.lad_tile"

    def __init__(self, run: LayerRun, model: TileLlama, attention: LadAttention | None):
        p = run.parameters(LadTileParameters)
        jobs = with_matrices(Tokens(p), run) if attention is None else attention.tokens
        self._jobs = cast(Tokens, jobs)
        super().__init__(run, self._jobs.memories() if attention is None else {})
        self._model, self._attention = model, attention
        turns = turns_of_layer(model, run.layer)
        self._add_vectors(p.vector_path, turns, np.random.default_rng(run.layer))
        self.multiply = JointProducts(model.columns, self._product).multiply
        rows = [[part.shape[0] * part.shape[1] for part in step] for step in self._matrices]
        ends = np.cumsum(np.concatenate(rows)).tolist()
        first = iter([0, *ends])
        self._first = [[next(first) for _ in step] for step in rows]

    @property
    def _matrices(self) -> list[list[np.ndarray]]:
        return self._model.matrices[self._layer]

    def _product(self, step: int, x: np.ndarray) -> np.ndarray:
        """``float32[vectors, columns]`` of ``x [vectors, rows]``."""
        if step == 0:
            self._latest = self._tokens[0]
        if self._model.norm is not None and step in NORMED:
            assert self.normalise is not None  # as the model is made for the tile
            x = self.normalise(x, self._model.norm)
        found, most = [], min(VPUS, self._p.heads)
        for first in range(0, len(x), most):
            vectors = x[first : first + most]
            token = self._begin(step, len(vectors))

            def part(number: int, pieces: np.ndarray, w: np.ndarray, token=token) -> np.ndarray:
                run = self._modelled if self._check else self._unchecked
                if self._attention is not None:
                    self._attention.weight_rows += w.shape[0] * w.shape[1]
                return run(token, step, pieces, self._first[step][number], len(w))

            found.append(self._model.summed(step, vectors, self._layer, part))
        return np.concatenate(found)

    def _modelled(
        self, token: int, step: int, vectors: np.ndarray, row: int, rows: int
    ) -> np.ndarray:
        """By the bit-exact model; by the RTL too, but perhaps later."""
        number = len(self._jobs.results)
        y = self._jobs.multiply(vectors, row, rows)
        # The memory does not change.
        stimulus = dataclasses.replace(self._jobs.stimulus([], since=number), memories={})

        def run() -> None:
            where = f"matrix {' '.join(STEPS[step])}: "
            outcome = self._compared(token, stimulus, where=where, place=lambda found: where)
            self.cycles[token][step] += outcome.cycles

        self._submit(run)
        return y[:, : len(vectors)]

    def _unchecked(
        self, token: int, step: int, vectors: np.ndarray, row: int, rows: int
    ) -> np.ndarray:
        """By the RTL alone."""
        inputs, (count, pieces, d) = input_streams(self._p), vectors.shape
        fields = {"heads": count, "group": 1, "pieces": pieces, "row": row, "rows": rows}
        offer(inputs, 0, fields)
        inputs.add("q", 0, {"": vectors.reshape(-1, d)})
        outcome = self._rtl(token, inputs.packed(), {"y": rows})
        self.cycles[token][step] += outcome.cycles
        found = payload.unpack(self._design.outputs["y"], outcome.outputs["y"])
        y = [found[f"y[{vector}]"].astype(np.uint32) for vector in range(count)]
        return np.stack(y, axis=1).view(np.float32)


class LadProducts(LadEngine):
    """Products of each layer on a tile, and attention on the same one if that is LAD's."""

    def parameters(self, config: Config, rows: int = 0) -> LadTileParameters:
        """A tile with a layer's matrices in its memory, and a special function module.

        Of models beyond Llama's and Qwen2's it only encodes positions: their sums may pass FP16.
        """
        tile = super().parameters(config, rows)
        half = not config.beyond_llama
        return dataclasses.replace(
            tile,
            weights=weight_rows(config, tile.d),
            vector_lanes=half * VECTOR_LANES,
            rotary_pairs=config.rope_dims // 2,
            normed=half * config.dim,
        )

    def require_fit(
        self, p: LadTileParameters, config: Config, rows: int = 0, tokens: int = 0
    ) -> None:
        super().require_fit(p, config, rows, tokens)
        least = weight_rows(config, p.d)
        require(p.weights >= least, f"weights must be at least {least}", p.weights)
        require_positions(p.vector_path, config, tokens)
        rule = f"normed must be 0 or at least {config.dim}"
        require(p.normed == 0 or p.normed >= config.dim, rule, p.normed)

    def quantise(
        self,
        model: Llama,
        tokenizer: Tokenizer,
        about: dict,
        parameters: LadTileParameters,
        progress: Callable[[str], None] = lambda text: None,
    ) -> TileLlama:
        """The model as the tile computes it."""
        progress("matrices in FP16 …")
        found = TileLlama(model, parameters.d, PIECES, normed=parameters.normed > 0)
        found.half_vectors = parameters.vector_lanes > 0
        found.half_positions = parameters.rotary_pairs > 0
        return found

    def layers(
        self,
        design: Design,
        quantised: Llama,
        timing: MemoryTiming = FASTEST,
        check: bool = True,
        submit: Callable[[int], Submit] = lambda layer: at_once,
        beside: Sequence[RtlPart] = (),
    ) -> list[LadLayer]:
        assert isinstance(quantised, TileLlama)
        found = []
        for layer in range(quantised.config.layers):
            attention = beside[layer] if beside else None
            assert attention is None or isinstance(attention, LadAttention)
            if attention is not None:
                rule = "check must be all or none where one tile computes attention and products"
                require(attention._check == check, rule, "attention")
            run = LayerRun(design, layer, timing, check, submit(layer), quantised, attention)
            found.append(LadLayer(run, quantised, attention))
        return found


def weight_rows(config: Config, d: int) -> int:
    """Rows of d elements of a layer's matrices."""
    shapes = matrix_shapes(config).values()
    return sum(columns * -(-rows // d) for rows, columns in shapes)
