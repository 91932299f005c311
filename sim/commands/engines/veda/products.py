"""Matrix products and norms of a language model on VEDA's core (VEDA, IV-A and IV-B)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from golden.algorithms.vectors import turns_of_layer
from golden.algorithms.veda.half_model import HalfLlama
from golden.lm.joint_products import NORMED, STEPS
from golden.lm.model import Llama
from golden.lm.tokenizer import Tokenizer
from golden.lm.weights import Config, matrix_shapes
from hw.attention.special_function_unit import VECTORS
from hw.parameters import require
from hw.veda.core_work import ProductWork
from hw.veda.veda_core_parameters import VedaCoreParameters
from sim.commands.engines.layer_vectors import VECTOR_LANES, require_positions
from sim.commands.engines.part import LayerRun, RtlPart
from sim.commands.engines.products import JointLayer
from sim.commands.engines.veda.attention import VedaAttention, VedaEngine, steps_of
from sim.commands.engines.workers import Submit, at_once
from sim.core.design import Design
from sim.core.memory import FASTEST, MemoryTiming
from sim.testbenches.memory import NAME
from sim.testbenches.veda.core_steps import Steps, input_streams, offer_product

DEPTH, TOKENS = 1024, 8
"""Rows in the core's buffer, as in the paper; tokens of a prompt that share rows."""


class VedaLayer(JointLayer[VedaCoreParameters]):
    """Products of one layer, by RTL and by the bit-exact model.

    A prompt's vectors share the rows of the matrices, as many as the core takes.

    steps
        What the core has computed so far, for all layers.
    attention
        The first layer's attention on the same core, if it is.
    """

    block = "veda.veda_core"

    def __init__(
        self, run: LayerRun, model: HalfLlama, steps: Steps, attention: VedaAttention | None
    ):
        super().__init__(run, {NAME: steps.memory()} if run.beside is None else {})
        self._model, self._steps = model, steps
        self._attention = attention
        turns = turns_of_layer(model, run.layer)
        self._add_vectors(self._p.vector_path, turns, np.random.default_rng(run.layer))
        self.multiply = model.joined(self._product).multiply
        sizes = [matrix.size // self._p.d for layer in model.matrices for matrix in layer]
        before = run.layer * len(STEPS)
        self._first = [sum(sizes[: before + step]) for step in range(len(STEPS))]

    def _product(self, step: int, x: np.ndarray) -> np.ndarray:
        """``float16[blocks vectors, d]`` of ``x [vectors, rows]``."""
        if step == 0:
            self._latest = self._tokens[0]
        found = []
        blocks = len(self._model.matrices[self._layer][step])
        for first in range(0, len(x), self._p.tokens):
            part = x[first : first + self._p.tokens]
            if self._attention is not None:
                work = ProductWork(x.shape[1], len(part), blocks, step in NORMED)
                self._attention.weight_rows += blocks * self._p.requests(work)
            run = self._modelled if self._check else self._unchecked
            o = run(self._begin(step, len(part)), step, part)
            found.append(o.reshape(-1, len(part), self._p.d))
        return np.concatenate(found, axis=1).reshape(-1, self._p.d)

    def _modelled(self, token: int, step: int, x: np.ndarray) -> np.ndarray:
        """By the bit-exact model; by the RTL too, but perhaps later."""
        number, blocks = len(self._steps.results), len(self._model.matrices[self._layer][step])
        norm = self._model.norm if step in NORMED else None
        result = self._steps.add_product(x, self._first[step], blocks, norm)
        stimulus = self._steps.stimulus([], since=number, memory=False)

        def run() -> None:
            outcome = self._compared(token, stimulus, where=f"matrix {' '.join(STEPS[step])}: ")
            self.cycles[token][step] = outcome.cycles

        self._submit(run)
        return result.o

    def _unchecked(self, token: int, step: int, x: np.ndarray) -> np.ndarray:
        """By the RTL alone."""
        inputs, (vectors, rows) = input_streams(self._p), x.shape
        blocks = len(self._model.matrices[self._layer][step])
        norm = self._model.norm if step in NORMED else None
        offer_product(inputs, 0, self._p, (rows, vectors, blocks), self._first[step], norm)
        inputs.add("x", 0, {"payload": x.reshape(-1)})
        outcome = self._rtl(token, inputs.packed(), {"o": blocks * vectors})
        self.cycles[token][step] = outcome.cycles
        return self._half(outcome, "o", "o", self._p.d)


class VedaProducts(VedaEngine):
    """Products and norms of all layers, and attention, on one core."""

    def parameters(self, config: Config, rows: int = 0) -> VedaCoreParameters:
        """A core of a context for each layer, with all layers' matrices in its memory, and units
        for vectors and positions; of models beyond Llama's and Qwen2's, whose sums may pass FP16,
        for positions alone."""
        core = super().parameters(config, rows)
        shapes = matrix_shapes(config)
        return dataclasses.replace(
            core,
            depth=DEPTH,
            contexts=config.layers,
            vector=max(shape[0] for shape in shapes.values()),
            tokens=TOKENS,
            block=max(1, min(TOKENS, VECTORS // core.parallel)),
            normed=config.dim,
            weights=weight_rows(config, core.d),
            vector_lanes=0 if config.beyond_llama else VECTOR_LANES,
            rotary_pairs=config.rope_dims // 2,
        )

    def require_fit(
        self, p: VedaCoreParameters, config: Config, rows: int = 0, tokens: int = 0
    ) -> None:
        super().require_fit(p, config, rows, tokens)
        rule = f"contexts must be at least {config.layers}, the model's layers"
        require(p.contexts >= config.layers, rule, p.contexts)
        longest = max(shape[0] for shape in matrix_shapes(config).values())
        require(p.vector >= longest, f"vector must be at least {longest}", p.vector)
        require(p.normed >= config.dim, f"normed must be at least {config.dim}", p.normed)
        require_positions(p.vector_path, config, tokens)
        least = weight_rows(config, p.d)
        require(p.weights >= least, f"weights must be at least {least}", p.weights)

    def quantise(
        self,
        model: Llama,
        tokenizer: Tokenizer,
        about: dict,
        parameters: VedaCoreParameters,
        progress: Callable[[str], None] = lambda text: None,
    ) -> HalfLlama:
        """The model as the core computes it."""
        progress("matrices in FP16 …")
        array = parameters.array
        found = HalfLlama(model, parameters.d, array.accumulator, array.add_stages)
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
    ) -> list[VedaLayer]:
        """One for each layer, all on one core, which is attention's if that is on this block."""
        assert isinstance(quantised, HalfLlama)
        attention = beside[0] if beside else None
        assert attention is None or isinstance(attention, VedaAttention)
        if attention is not None:
            rule = "check must be all or none where one core computes attention and products"
            require(attention._check == check, rule, "attention")
            steps = attention._steps
        else:
            steps = steps_of(cast(VedaCoreParameters, design.parameters), quantised)
        found: list[VedaLayer] = []
        for layer in range(quantised.config.layers):
            other = attention or (found[0] if found else None)
            run = LayerRun(design, layer, timing, check, submit(0), quantised, other)
            found.append(VedaLayer(run, quantised, steps, attention))
        return found


def weight_rows(config: Config, d: int) -> int:
    """Rows of d elements of all layers' matrices."""
    shapes = matrix_shapes(config).values()
    return config.layers * sum(rows * -(-columns // d) for rows, columns in shapes)
