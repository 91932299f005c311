"""A language model with KLLM's matrix products (KLLM, sections III-D and V-A).

All seven matrices of each layer and their inputs are quantised; attention, norms and output can be;
element-wise functions, embedding and residual sums are float32. Products are computed from the
dequantised operands in float32, which equal :func:`golden.algorithms.kllm.matvec.matvec` but for
rounding and are much faster; or the accelerator's, FP16 in and FP16 out, bit-exact.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from golden.algorithms.attention import DecodeAttention, DenseAttention
from golden.algorithms.kllm.activations import ActivationQuantizer, fit_activation_quantizer
from golden.algorithms.kllm.attention import (
    Codebooks,
    QuantizedAttention,
    fit_codebooks,
    quantised_heads,
)
from golden.algorithms.kllm.calibration import SeparateSamples, evenly
from golden.algorithms.kllm.fit import fit_weights
from golden.algorithms.kllm.fold import NORMED, FoldedLlama
from golden.algorithms.kllm.hessians import layer_hessians
from golden.algorithms.kllm.options import check_options
from golden.algorithms.kllm.quantize import QuantizedWeights, quantize_weights
from golden.algorithms.kllm.quantized_layers import QuantizedLayers
from golden.algorithms.kllm.tune import tune_scales
from golden.algorithms.kllm.weight_store import read_weights, weights_key, write_weights
from golden.algorithms.vectors import HalfVectors
from golden.kllm.kllm_core import Norm, kllm_core, parts_of, tables_of
from golden.lm.gradient import Rounding, fisher_information
from golden.lm.model import Llama, rms_norm
from golden.lm.progress import Progress, counted
from golden.lm.weights import INPUTS, Layer

ACTIVATION_SAMPLES, ACTIVATION_TOKENS = 16, 64
"""Number of samples and of tokens of each for codebooks of activations [V-A].

Weights are fitted to all of them.
"""


class QuantizedLlama(HalfVectors):
    """A model with K-Means weights and activations, quantised when constructed.

    weight_bits, activation_bits
        1 to 8; None: not quantised.
    fit
        ``paper``: plain K-Means, of weights with each channel's largest magnitude as their scale.
        ``fitted``: weights are fitted to the samples, :mod:`golden.algorithms.kllm.fit`, and errors
        of activations count by what they cost: the square of the row of weights that an element
        multiplies, or in attention the mean square of what its channel multiplies.
    outlier_share
        Share of outliers among a token's activations, both ends together; weights have no outliers.
    outliers
        At each end of a token, however long it is, in place of the share: a core's own number.
    thresholds
        Of outliers: ``dynamic``, each token's own by Orizuru (KLLM), or ``static``, fixed by
        calibration along with the scale (KLLM-S).
    fisher
        Weight the calibration activations by their diagonal Fisher information [V-A].
    norms
        ``float``, or ``fused``: gains are in the matrices, the residual stream is quantised, and
        1 / RMS is a factor from its indices and outliers, as in the accelerator [III-C2].
    rotate
        Rotate the residual stream, and V within heads, by fixed orthogonal matrices, offline.
    attention
        ``float``, or ``quantised``: :class:`golden.algorithms.kllm.attention.QuantizedAttention`.
    head
        Quantise the output matrix too.
    rows
        Most values of a vector in a product of the accelerator; longer ones are in parts, which are
        quantised apart. In floats they are not.
    bit_exact
        Compute all that is quantised as :func:`golden.kllm.kllm_core.kllm_core` does, bit-exactly
        as the accelerator; the attribute may be set later too. It needs quantised weights and
        activations and dynamic thresholds: the accelerator has no other mode.
    tuned
        Tune the columns' scales on the samples `tuning` with all layers quantised, so that
        predictions are the float model's (:mod:`golden.algorithms.kllm.tune`).
    cached
        Keep fitted weights in the project's cache folder and take them from there.
    progress
        Whether to show a bar on standard error, or a function that is called with a word on each
        layer or step that begins.

    ``activations[layer][input]`` is how each input of ``INPUTS`` is quantised, ``matrices[layer]``
    holds each layer's :class:`QuantizedWeights` by name, ``norms[layer]`` its two norms' gains,
    ``biases[layer]`` what is added to products, ``codebooks[layer]`` its attention's codebooks, if
    it is quantised, ``head`` the output matrix and how its input is quantised, or None. ``exact``
    is the float model that is quantised.
    """

    check = staticmethod(check_options)

    def __init__(
        self,
        model: Llama,
        samples: Sequence[Sequence[int]],
        *,
        weight_bits: int | None = 4,
        activation_bits: int | None = 4,
        fit: str = "fitted",
        outlier_share: float = 0.01,
        outliers: int | None = None,
        thresholds: str = "dynamic",
        fisher: bool = False,
        norms: str = "float",
        rotate: bool = False,
        attention: str = "float",
        head: bool = False,
        tuned: bool = False,
        rows: int | None = None,
        bit_exact: bool = False,
        tuning: Sequence[Sequence[int]] = (),
        cached: bool = False,
        progress: Progress = False,
    ) -> None:
        self.check(
            *(weight_bits, activation_bits, fit, outlier_share, outliers, thresholds, fisher),
            *(norms, rotate, attention, head, tuned, rows, bit_exact),
        )
        if model.config.beyond_llama:
            raise ValueError(
                f"the model's layers must be like Llama's, without {model.config.beyond_llama}"
            )
        if tuned and not tuning:
            raise ValueError("tuned: there must be samples to tune on")
        bar = progress is True
        short = [sample[:ACTIVATION_TOKENS] for sample in evenly(samples, ACTIVATION_SAMPLES)]
        sensitivity = fisher_information(model, short, progress=bar) if fisher else {}
        exact = FoldedLlama(model, rotate) if norms == "fused" else model
        self.norms: list[tuple[np.ndarray, np.ndarray]] = []
        self.biases: list[Mapping[str, np.ndarray]] = []
        self.activations: list[dict[str, ActivationQuantizer]] = []
        self.codebooks: list[Codebooks] = []
        self.matrices: list[dict[str, QuantizedWeights]]
        self.head: tuple[QuantizedWeights, ActivationQuantizer | None] | None = None

        fitted = samples if fit == "fitted" else None

        def kept(make: Callable[[int], list[dict[str, QuantizedWeights]]], part: str):
            assert weight_bits is not None, "only quantised weights are kept"
            key = weights_key(exact, fitted or [], weight_bits, part) if cached else ""
            found = read_weights(key, weight_bits) if cached else None
            if found is None:
                found = make(weight_bits)
                if cached:
                    write_weights(key, found, weight_bits)
            return found

        def fitted_layers() -> list[dict[str, QuantizedWeights]]:
            return kept(lambda bits: _quantised_layers(exact, fitted, bits, progress), "layers")

        self.matrices = [{} for _ in range(model.config.layers)]
        if weight_bits is not None and not tuned:
            self.matrices = fitted_layers()
        if head:
            made = kept(lambda bits: _quantised_head(exact, fitted, bits, progress), "head")

        def calibrate(index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
            """Fit a layer's activations as they arrive."""
            activations: dict[str, ActivationQuantizer] = {}
            self.norms.append((layer.attn_norm, layer.ffn_norm))
            self.biases.append(layer.biases)
            self.activations.append(activations)
            multiply = exact.products(index, layer)

            def watched(name: str, x: np.ndarray) -> np.ndarray:
                into = INPUTS[name]
                if activation_bits is not None and into not in activations:
                    information = sensitivity.get((index, into))
                    if information is None and fit == "fitted":
                        information = costs(x, layer, into)
                    activations[into] = quantizer_of(x, information)
                return multiply(name, x)

            return watched

        def quantizer_of(x: np.ndarray, information: np.ndarray | None) -> ActivationQuantizer:
            assert activation_bits is not None, "activations stay float"
            static = thresholds == "static"
            return fit_activation_quantizer(
                x, activation_bits, outlier_share, static, information, outliers, rows
            )

        def costs(x: np.ndarray, layer: Layer, into: str) -> np.ndarray:
            """``float32[token, K]``: what a unit of squared error of x costs in the products."""
            names = [name for name in INPUTS if INPUTS[name] == into]
            rows = sum(np.square(getattr(layer, name)).sum(axis=1) for name in names)
            fused = norms == "fused" and names[0] in NORMED
            square = np.square(x).mean(axis=1, keepdims=True) if fused else np.ones((len(x), 1))
            return (rows / (square + np.float32(model.config.norm_eps))).astype(np.float32)

        seen: dict[str, np.ndarray] = {}

        def observe(layer: int, name: str, array: np.ndarray) -> None:
            """Fit the codebooks of a layer's attention."""
            if attention == "quantised" and name in "qkv":
                seen[name] = array
                if name == "v":
                    self.codebooks.append(fit_codebooks(**seen, fitted=fit == "fitted"))

        dense = copy.copy(exact)
        setattr(dense, "products", calibrate)  # noqa: B010
        hidden = _run(dense, short, "calibrating" if bar else None, observer=observe)
        if head:
            self.head = made[0]["output"], quantizer_of(hidden, None) if activation_bits else None
        self._finish(exact, bit_exact)
        if tuned:
            chosen = (
                *(activation_bits, fit, outlier_share, outliers, thresholds, fisher, norms),
                *(rotate, attention, rows),
            )
            runs = [[list(run) for run in group] for group in (samples, tuning)]
            part = f"tuned {chosen} {runs}"
            self.matrices = kept(lambda _: self._tuned(fitted_layers(), tuning, progress), part)
            self._finish(exact, bit_exact)

    def _finish(self, exact: Llama, bit_exact: bool) -> None:
        """The rest of construction, from the parts."""
        self.exact, self.bit_exact = exact, bit_exact
        self.fused = isinstance(exact, FoldedLlama)
        layers = exact.weights.layers
        if self.matrices[0]:
            layers = QuantizedLayers(self.norms, self.matrices, self.biases)
        super().__init__(dataclasses.replace(exact.weights, layers=layers))

    def _tuned(
        self,
        matrices: list[dict[str, QuantizedWeights]],
        tuning: Sequence[Sequence[int]],
        progress: Progress,
    ) -> list[dict[str, QuantizedWeights]]:
        """Matrices with scales tuned to the rest of this model."""

        def rounding(index: int) -> Rounding:
            quantizers = self.activations[index]

            def vector(name: str, x: np.ndarray) -> np.ndarray:
                quantizer = quantizers.get(name)
                return x if quantizer is None else quantizer(x).dequantize(np.float32)

            if not self.codebooks:
                return Rounding(vector, before_norm=self.fused)
            heads = functools.partial(quantised_heads, self.codebooks[index])
            return Rounding(vector, heads, before_norm=self.fused)

        roundings = [rounding(index) for index in range(self.config.layers)]
        return tune_scales(self.exact, matrices, roundings, tuning, progress)

    def attention_of(self, layer: int) -> DecodeAttention:
        if not self.codebooks:
            return DenseAttention()
        return QuantizedAttention(self.codebooks[layer], bit_exact=self.bit_exact)

    def normalise(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return self.exact.normalise(x, gain)

    def products(self, index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        quantizers, matrices = self.activations[index], self.matrices[index]
        if self.bit_exact:
            return lambda name, x: core_product(
                x, quantizers[INPUTS[name]], matrices[name], self._norm(name)
            )
        seen: dict[str, np.ndarray] = {}

        def multiply(name: str, x: np.ndarray) -> np.ndarray:
            into = INPUTS[name]
            if into not in seen:
                seen[into] = self._input(name, x, quantizers.get(into))
            return seen[into] @ getattr(layer, name)

        return multiply

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        if self.head is None:
            return self.exact.logits(hidden)
        matrix, quantizer = self.head
        if self.bit_exact:
            assert quantizer is not None, "bit_exact needs activation_bits"
            return core_product(hidden, quantizer, matrix, self._norm("output"))
        return self._input("output", hidden, quantizer) @ self._output

    @functools.cached_property
    def _output(self) -> np.ndarray:
        assert self.head is not None, "the head is dense"
        return self.head[0].dequantize(np.float32)

    def _norm(self, name: str) -> Norm | None:
        if not self.fused or name not in (*NORMED, "output"):
            return None
        return Norm(np.float32(1 / self.config.dim), np.float32(self.config.norm_eps))

    def _input(self, name: str, x: np.ndarray, quantizer: ActivationQuantizer | None) -> np.ndarray:
        """``float32[token, K]``: vectors quantised, and divided by their RMS if that is fused."""
        x = x if quantizer is None else quantizer(x).dequantize(np.float32)
        norm = self._norm(name)
        if norm is None:
            return x
        # The sum of squares of the dequantised vector is nonlinear.rms_norm's from counts.
        return rms_norm(x, np.ones(1, np.float32), self.config.norm_eps)


def _quantised_layers(
    exact: Llama, samples: Sequence[Sequence[int]] | None, bits: int, progress: Progress
) -> list[dict[str, QuantizedWeights]]:
    """Each layer's matrices by name, fitted to `samples` or, without, as in the paper."""
    layers = exact.config.layers
    hessians = None if samples is None else layer_hessians(exact, samples, progress)
    found: list[dict[str, QuantizedWeights]] = []
    for index in counted(layers, "fitting", "layer", progress):
        layer = exact.weights.layers[index]
        if hessians is None:
            found.append({name: quantize_weights(getattr(layer, name), bits) for name in INPUTS})
            continue
        own, hessians[index] = hessians[index], {}
        found.append({name: fit_weights(getattr(layer, name), own[name], bits) for name in INPUTS})
    return found


def _quantised_head(
    exact: Llama,
    samples: Sequence[Sequence[int]] | None,
    bits: int,
    progress: Progress,
) -> list[dict[str, QuantizedWeights]]:
    """The output matrix as one layer's, fitted to `samples` or, without, as in the paper."""
    if samples is None:
        return [{"output": quantize_weights(exact.weights.output, bits)}]
    hidden = _run(exact, samples, "fitting the head" if progress is True else None)
    x = exact.normalised("output", hidden)
    return [{"output": fit_weights(exact.weights.output, x.T @ x / np.float32(len(x)), bits)}]


def _run(model: Llama, samples: Sequence[Sequence[int]], progress: str | None, **options):
    """Hidden states of the samples, one after another; none attends to another."""
    lengths = [len(sample) for sample in samples]
    return model.hidden(
        [token for sample in samples for token in sample],
        [SeparateSamples(lengths) for _ in range(model.config.layers)],
        progress=progress,
        **options,
    )


def core_product(
    x: np.ndarray,
    quantizer: ActivationQuantizer,
    matrix: QuantizedWeights,
    norm: Norm | None = None,
) -> np.ndarray:
    """``float32[token, N]``: the accelerator's FP16 results for tokens [token, K], made FP16."""
    tables = tables_of(quantizer.codebook, matrix.codebook)
    parts = parts_of(x.shape[-1], quantizer.rows or x.shape[-1])
    outliers = quantizer.count(parts[0].stop)
    x, rows = x.astype(np.float16), quantizer.rows
    y, _ = kllm_core(x, tables, matrix.index, matrix.scale, outliers, norm=norm, rows=rows)
    return y.astype(np.float32)
