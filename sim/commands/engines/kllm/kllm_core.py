"""Matrix products of a language model on KLLM's core, one session a layer (KLLM, III-D and IV).

A core's number of outliers is fixed when it is built, so that every vector has as many as 1 % of
the longest: 8 at each end for 1536 values, which makes 16 of 576. The paper's 1 % of each vector
needs the number in the command.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from golden.algorithms.kllm.model import INPUTS, ActivationQuantizer, QuantizedLlama
from golden.algorithms.kllm.quantize import QuantizedWeights, outlier_count
from golden.algorithms.kllm.store import matrix_shapes, quantized_model
from golden.kllm.kllm_core import front_end, multiply, tables_of
from golden.lm.model import Llama
from golden.lm.tokenizer import Tokenizer
from golden.lm.weights import Config
from hw.kllm.kllm_core import KllmCoreParameters
from hw.parameters import require
from sim.commands.engines.difference import Difference
from sim.commands.engines.workers import Submit, at_once
from sim.core import payload
from sim.core.design import Design
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stimulus import Outcome, compare
from sim.drivers.harness.session import Session
from sim.testbenches.kllm.products import (
    Matrices,
    Product,
    Result,
    packed_inputs,
    pairs_of,
    stimulus_of,
)

BLOCK = "kllm.kllm_core"

STEPS = (("wq", "wk", "wv"), ("wo",), ("gate", "up"), ("down",))
"""Matrices of one input, whose products are offered to the core together."""


class KllmLayer:
    """One layer's products, computed by RTL and compared with the bit-exact model on every bit.

    design
        Of ``kllm.kllm_core``; layers share its compiled code.
    layer
        Its number, for messages.
    matrices, quantizers
        Its matrices by name, and how each of their inputs is quantised.
    check
        False: there is no model; what the RTL gives goes on.
    submit
        Runs the RTL of a step and compares it; the model's results go on at once.

    ``cycles`` has those of each token's four steps, ``predicted`` the cycle model's, which are the
    same if the memory keeps up; ``bits`` counts the output bits compared. All three are complete
    once everything submitted has run.
    """

    def __init__(
        self,
        design: Design,
        layer: int,
        matrices: dict[str, QuantizedWeights],
        quantizers: dict[str, ActivationQuantizer],
        timing: MemoryTiming = FASTEST,
        check: bool = True,
        submit: Submit = at_once,
    ):
        self._design, self._layer = design, layer
        self._check, self._submit = check, submit
        parameters: Any = design.parameters  # of this block
        self._parameters: KllmCoreParameters = parameters
        self._matrices = matrices
        self._tables = {
            name: tables_of(quantizers[INPUTS[name]].codebook, matrix.codebook)
            for name, matrix in matrices.items()
        }
        stored = Matrices(parameters)
        self._address = {name: stored.add(m.index, m.scale) for name, m in matrices.items()}
        self._session = Session(design, {"weights": stored.memory()}, timing)
        self._rng = np.random.default_rng(layer)  # of bits without meaning
        self._ready: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._tokens = [0] * len(STEPS)  # that each step has had
        self.cycles: list[list[int]] = []
        self.predicted: list[list[int]] = []
        self.bits = 0

    def multiply(self, name: str, x: np.ndarray) -> np.ndarray:
        """``float32[token, N]``: the FP16 results for tokens ``x [token, K]``, made FP16.

        The first matrix of an input computes the products of all that have this input; those that
        follow with the same `x` have their results ready.
        """
        step = next(number for number, names in enumerate(STEPS) if name in names)
        seen, result = self._ready.pop(name, (x[:0], x))
        if seen is x or np.array_equal(seen, x):
            return result
        compute = self._modelled if self._check else self._unchecked
        found = compute(step, x.astype(np.float16))
        self._ready |= {other: (x, y.astype(np.float32)) for other, y in found.items()}
        return self._ready.pop(name)[1]

    def _modelled(self, step: int, x: np.ndarray) -> dict[str, np.ndarray]:
        """A step by the bit-exact model; by the RTL too, but perhaps later."""
        names = STEPS[step]
        # One codebook of activations, so that the vectors' split and indices are the same for all.
        vectors = front_end(x, self._tables[names[0]], self._parameters.outliers)
        results = {}
        for name in names:
            matrix = self._matrices[name]
            results[name] = multiply(vectors, self._tables[name], matrix.index, matrix.scale)
        for number, token in enumerate(self._new_tokens(step, len(x))):
            outlier, pairs = vectors.outlier[number], pairs_of(vectors, number)
            expected = [
                Result(outlier, pairs, y[number], invalid[number])
                for y, invalid in results.values()
            ]
            self._submit(partial(self._run, step, token, x[number], expected))
        return {name: y for name, (y, _) in results.items()}

    def _run(self, step: int, token: int, x: np.ndarray, expected: list[Result]) -> None:
        """A token's step on the RTL, compared."""
        names, outputs = STEPS[step], self._design.outputs
        addresses = [self._address[name] for name in names]
        stimulus = stimulus_of(
            self._parameters, self._products(step, x), addresses, expected, self._rng
        )
        counts = {name: len(beats) for name, beats in stimulus.outputs.items()}
        outcome = self._step_of_rtl(step, token, stimulus.inputs, counts)
        found = compare(stimulus, outcome.outputs, outputs, outcome.cycles_of)
        if found:
            # Beats too many belong to no product.
            name = [*names, names[-1]][found[0].transaction]
            raise Difference(BLOCK, self._layer, token, f"matrix {name}: {found[0]}")
        self.predicted[token][step] = stimulus.cycles
        self.bits += sum(len(b) * payload.width(outputs[n]) for n, b in stimulus.outputs.items())

    def _unchecked(self, step: int, x: np.ndarray) -> dict[str, np.ndarray]:
        """A step by the RTL alone."""
        p, names = self._parameters, STEPS[step]
        addresses = [self._address[name] for name in names]
        widths = [len(self._matrices[name].scale) for name in names]
        sets = [-(-width // p.lanes) for width in widths]
        rows = []
        for number, token in enumerate(self._new_tokens(step, len(x))):
            inputs = packed_inputs(p, self._products(step, x[number]), addresses, self._rng)
            counts = {"outliers": p.outliers * len(names), "y": sum(sets)}
            outcome = self._step_of_rtl(step, token, inputs, counts)
            fields = payload.unpack(self._design.outputs["y"], outcome.outputs["y"])
            y = np.stack([fields[f"y[{lane}]"] for lane in range(p.lanes)], axis=1)
            parts = np.split(y.astype(np.uint16).view(np.float16), np.cumsum(sets)[:-1])
            rows.append([part.ravel()[:n] for part, n in zip(parts, widths, strict=True)])
        return {name: np.array([row[i] for row in rows]) for i, name in enumerate(names)}

    def _new_tokens(self, step: int, count: int) -> range:
        """Numbers of the next tokens of a step."""
        first = self._tokens[step]
        self._tokens[step] += count
        while len(self.cycles) < self._tokens[step]:
            self.cycles.append([0] * len(STEPS))
            self.predicted.append([0] * len(STEPS))
        return range(first, first + count)

    def _products(self, step: int, x: np.ndarray) -> list[Product]:
        keep = np.ones(len(x), bool)
        return [
            Product(x, keep, self._tables[name], True, matrix.index, matrix.scale)
            for name in STEPS[step]
            for matrix in [self._matrices[name]]
        ]

    def _step_of_rtl(
        self, step: int, token: int, inputs: dict[str, np.ndarray], expected: dict[str, int]
    ) -> Outcome:
        outcome = self._session.step(inputs, expected)
        if outcome.failure is not None:
            names = ", ".join(STEPS[step])
            raise Difference(BLOCK, self._layer, token, f"matrix {names}: {outcome.failure}")
        self.cycles[token][step] = outcome.cycles
        return outcome

    def bytes_moved(self) -> dict[str, int]:
        """Bytes that the core has read from the memory of its weights, scales included."""
        return {"weights_read": self._session.uses()["weights"].bytes_read}

    def close(self) -> None:
        self._session.close()


class KllmEngine:
    """Products of all layers of a model, each layer's in a session of its own."""

    def parameters(self, config: Config, rows: int = 0) -> KllmCoreParameters:
        """One core for all matrices, as long and wide as the longest and the widest of them.

        Its other sizes make a token of SmolLM2 quick to simulate.
        """
        shapes = matrix_shapes(config).values()
        k, n = (max(sizes) for sizes in zip(*shapes, strict=True))
        outliers = outlier_count(k)
        counters = min(9, -(-k // 16))
        core = KllmCoreParameters(
            k,
            n,
            4,
            counters=counters,
            macs=64,
            outliers=outliers,
            entries=min(4, 2 * outliers),
            address_width=24,
        )
        width = max((words_of_layer(core, config) - 1).bit_length(), 1)
        return dataclasses.replace(core, address_width=width)

    def require_fit(
        self, p: KllmCoreParameters, config: Config, rows: int = 0, tokens: int = 0
    ) -> None:
        """Refuse a core that the model does not fit; products depend on no rows and no tokens.

        :raises ParameterError: naming the parameter to change.
        """
        shapes = matrix_shapes(config).values()
        k, n = (max(sizes) for sizes in zip(*shapes, strict=True))
        require(k <= p.k, f"k must be at least {k}, the model's longest input", p.k)
        require(n <= p.n, f"n must be at least {n}, the model's widest matrix", p.n)
        shortest = min(length for length, _ in shapes)
        rule = f"outliers must be fewer than half of the model's shortest input, {shortest}"
        require(2 * p.outliers < shortest, rule, p.outliers)
        words = words_of_layer(p, config)
        least = (words - 1).bit_length()
        rule = f"address_width must be at least {least} for the {words} words of a layer"
        require(least <= p.address_width, rule, p.address_width)

    def quantise(
        self,
        model: Llama,
        tokenizer: Tokenizer,
        about: dict,
        parameters: KllmCoreParameters,
        progress: Callable[[str], None] = lambda text: None,
    ) -> QuantizedLlama:
        """The model as the core computes it, made once and kept in the project's cache folder."""
        return quantized_model(
            model,
            tokenizer,
            weight_bits=parameters.weight_bits,
            activation_bits=parameters.activation_bits,
            outliers=parameters.outliers,
            progress=progress,
        )

    def layers(
        self,
        design: Design,
        quantised: QuantizedLlama,
        timing: MemoryTiming = FASTEST,
        check: bool = True,
        submit: Callable[[int], Submit] = lambda layer: at_once,
    ) -> list[KllmLayer]:
        """One for each layer, with the same compiled design inside; `submit` gives each its own."""
        parts = zip(quantised.matrices, quantised.activations, strict=True)
        return [
            KllmLayer(design, number, *part, timing, check, submit(number))
            for number, part in enumerate(parts)
        ]


def words_of_layer(p: KllmCoreParameters, config: Config) -> int:
    """Words of the core's memory that the seven matrices of a layer take."""
    shapes = matrix_shapes(config).values()
    return sum(-(-k // p.segment) * -(-n // p.lanes) for k, n in shapes)


engine = KllmEngine()
