"""A language model with KLLM's matrix products (KLLM, sections III-D and V-A).

All seven matrices of each layer and their inputs are quantised; attention, norms and output can be;
element-wise functions, embedding and residual sums stay float32. Products are those of the
dequantised operands in float32, which equal :func:`golden.algorithms.kllm.matvec.matvec` but for
rounding and are much faster; or the accelerator's, FP16 in and FP16 out, bit-exact.
"""

import copy
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from golden import InputError
from golden.algorithms.attention import DecodeAttention, DenseAttention
from golden.algorithms.kllm.attention import Codebooks, QuantizedAttention, fit_codebooks
from golden.algorithms.kllm.fit import fit_weights
from golden.algorithms.kllm.fold import NORMED, FoldedLlama
from golden.algorithms.kllm.quantize import (
    QuantizedActivations,
    QuantizedWeights,
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    outlier_count,
    quantize_activations,
    quantize_weights,
    static_outliers,
)
from golden.algorithms.kllm.weight_store import read_weights, weights_key, write_weights
from golden.kllm.kllm_core import Norm, kllm_core, parts_of, tables_of
from golden.lm.gradient import fisher_information
from golden.lm.model import Llama, rms_norm
from golden.lm.text import default_text, many_subjects
from golden.lm.tokenizer import Tokenizer
from golden.lm.weights import Layer

INPUTS = {
    "wq": "attn",
    "wk": "attn",
    "wv": "attn",
    "wo": "wo",
    "gate": "ffn",
    "up": "ffn",
    "down": "down",
}
"""The input of each matrix: matrices with the same one share its quantised activations."""

ACTIVATION_SAMPLES, ACTIVATION_TOKENS = 16, 64
"""Of the samples, for codebooks of activations [V-A]; weights are fitted to all of them."""


def calibration_samples(
    tokenizer: Tokenizer, samples: int = 32, length: int = 128, evaluated: str = ""
) -> list[list[int]]:
    """Runs of tokens to calibrate on, none of them in the text that is evaluated.

    Half of them are of ``default_text``, evenly spread over its second half, or over what follows
    `evaluated` if that reaches further; half of ``many_subjects``: of as many tokens, that makes
    weights' errors in three products of layer 14 18 to 29 % smaller on a text of another subject,
    and 7 to 12 % larger on the reference. [V-A] has 16 samples. Fitted to 32 x 256 tokens, products
    of three layers err up to a quarter less on other tokens than fitted to 16 x 128, and to
    64 x 256 a few percent less again; 32 x 128 takes a quarter of that time.

    :raises InputError: if too little of the texts is left.
    """
    text = default_text()
    start = len(text) // 2
    at = text.find(evaluated[:_FOUND]) if evaluated else -1
    if at >= 0:
        # Cut inside a character, the evaluated text ends differently.
        start = max(start, at + len(os.path.commonprefix([text[at:], evaluated])))
    half = samples // 2
    return [
        *_spread(tokenizer, samples - half, length, text, start, evaluated),
        *_spread(tokenizer, half, length, many_subjects(), 0, evaluated),
    ]


def _spread(
    tokenizer: Tokenizer, samples: int, length: int, text: str, start: int, evaluated: str
) -> list[list[int]]:
    """Samples evenly spread over `text` from character `start` on."""
    # Paragraphs are repeated: of four candidates for each sample, those that are not are left.
    starts = start + np.arange(4 * samples) * (len(text) - start) // max(4 * samples, 1)
    evaluated_runs, encoded = _runs(evaluated), []
    for first in starts:
        # A start inside a word would make rare tokens.
        end = min(first + 16 * length, len(text))
        at = text.find(" ", first, end)
        tokens = tokenizer.encode(text[at:end], length) if at >= 0 else []
        if len(tokens) == length and not _runs(tokenizer.decode(tokens)) & evaluated_runs:
            encoded.append(tokens)
    if len(encoded) < samples:
        raise InputError(
            f"the text is evaluated up to character {start} of {len(text)}: too little is left"
            f" for {samples} x {length} tokens to calibrate on"
        )
    return [encoded[number * len(encoded) // samples] for number in range(samples)]


def _runs(text: str) -> set[tuple[str, ...]]:
    """All runs of 12 words."""
    words = text.split()
    return {tuple(words[first : first + 12]) for first in range(len(words) - 11)}


_FOUND = 200
"""Characters by which an evaluated text is found in the one to calibrate on."""


@dataclasses.dataclass(frozen=True, eq=False)
class ActivationQuantizer:
    """How one product's input is quantised: outliers, scale and codebook.

    ``thresholds`` and ``scale`` are fixed offline in KLLM-S and None in KLLM, where ``share`` of
    each token's values are outliers, or ``outliers`` at each end whatever the share, and the scale
    is the token's own.
    """

    codebook: np.ndarray
    share: float
    thresholds: tuple[float, float] | None = None
    scale: np.float16 | None = None
    outliers: int | None = None
    rows: int | None = None

    def __call__(self, x: np.ndarray) -> QuantizedActivations:
        """Quantise tokens [token, K]; they are rounded to FP16 first."""
        x = x.astype(np.float16)
        outlier = _outliers(x, self.count(x.shape[-1]), self.thresholds)
        return quantize_activations(x, self.codebook, outlier, self.scale)

    def count(self, n: int) -> int:
        """Outliers at each end of a token of `n` values."""
        return outlier_count(n, self.share) if self.outliers is None else self.outliers


def fit_activation_quantizer(
    x: np.ndarray,
    bits: int,
    share: float,
    static: bool,
    fisher: np.ndarray | None = None,
    outliers: int | None = None,
    rows: int | None = None,
) -> ActivationQuantizer:
    """Train on calibration tokens [token, K].

    Static thresholds leave ``share`` / 2 of all calibration values beyond each; the larger of their
    magnitudes is the fixed scale. ``fisher`` [token, K] is the diagonal Fisher information of `x`;
    that of x / s_A, the codebook's values, is s_A^2 times as large. ``outliers`` at each end of a
    token replace the share. With `rows`, parts of at most as many values are vectors of their own.
    """
    x = x.astype(np.float16)
    if rows is not None and x.shape[1] > rows:
        parts = parts_of(x.shape[1], rows)
        # Parts are of about one size; the shortest one's values stand for the others' as well.
        length = min(part.stop - part.start for part in parts)
        fisher = None if fisher is None else np.broadcast_to(fisher, x.shape)
        x, fisher = (
            None if a is None else np.concatenate([a[:, p.start : p.start + length] for p in parts])
            for a in (x, fisher)
        )
    thresholds = scale = None
    if static:
        ends = [share / 2, 1 - share / 2]
        low, high = np.quantile(x.astype(np.float32), ends).astype(np.float16)
        thresholds, scale = (low, high), max(abs(low), abs(high)) or np.float16(1)
    count = outlier_count(x.shape[-1], share) if outliers is None else outliers
    outlier = _outliers(x, count, thresholds)
    scales = inlier_scale(x, outlier) if scale is None else np.full(len(x), scale)
    scales = scales.astype(np.float32)[:, None]
    samples = (x / scales)[~outlier]
    weights = None if fisher is None else (fisher * scales**2)[~outlier]
    codebook = fit_activation_codebook(samples, bits, weights)
    return ActivationQuantizer(codebook, share, thresholds, scale, outliers, rows)


class QuantizedLlama(Llama):
    """A model with K-Means weights and activations, quantised when constructed.

    weight_bits, activation_bits
        1 to 8; None: not quantised.
    fit
        ``paper``: plain K-Means, of weights with each channel's largest magnitude as their scale.
        ``fitted``: weights are fitted to the samples, :mod:`golden.algorithms.kllm.fit`, and errors
        of activations count by what they cost: the square of the row of weights that an element
        multiplies, or in attention the mean square of what its channel multiplies.
    outlier_share
        Of a token's activations, both ends together; weights have no outliers.
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
    cached
        Keep fitted weights in the project's cache folder and take them from there.
    progress
        Whether to show a bar on standard error, or a function that is called with the number of
        each layer that begins.

    ``activations[layer][input]`` is how each input of ``INPUTS`` is quantised, ``matrices[layer]``
    holds each layer's :class:`QuantizedWeights` by name, ``norms[layer]`` its two norms' gains,
    ``codebooks[layer]`` those of its attention, if that is quantised, ``head`` the output matrix
    and how its input is quantised, or None. ``exact`` is the float model that is quantised.
    """

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
        rows: int | None = None,
        bit_exact: bool = False,
        cached: bool = False,
        progress: bool | Callable[[int], None] = False,
    ) -> None:
        _one_of("thresholds", thresholds, "dynamic", "static")
        _one_of("fit", fit, "fitted", "paper")
        _one_of("norms", norms, "float", "fused")
        _one_of("attention", attention, "float", "quantised")
        if bit_exact and thresholds != "dynamic":
            raise ValueError("bit_exact: thresholds must be 'dynamic'")
        if bit_exact and None in (weight_bits, activation_bits):
            raise ValueError("bit_exact: weights and activations must both be quantised")
        if norms == "fused" and (fisher or thresholds == "static"):
            raise ValueError("norms=fused: thresholds must be 'dynamic' and fisher false")
        if rotate and norms != "fused":
            raise ValueError("rotate: norms must be 'fused', since a gain does not rotate")
        if head and weight_bits is None:
            raise ValueError("head: weights must be quantised")
        outlier_count(1, outlier_share)  # raises ValueError for a share out of range
        bar = progress is True
        short = [sample[:ACTIVATION_TOKENS] for sample in evenly(samples, ACTIVATION_SAMPLES)]
        sensitivity = fisher_information(model, short, progress=bar) if fisher else {}
        exact = FoldedLlama(model, rotate) if norms == "fused" else model
        self.norms: list[tuple[np.ndarray, np.ndarray]] = []
        self.activations: list[dict[str, ActivationQuantizer]] = []
        self.codebooks: list[Codebooks] = []
        self.matrices: list[dict[str, QuantizedWeights]]
        self.head: tuple[QuantizedWeights, ActivationQuantizer | None] | None = None

        self.matrices = [{} for _ in range(model.config.layers)]
        if weight_bits is not None:
            fitted = samples if fit == "fitted" else None

            def kept(make: Callable[..., list[dict[str, QuantizedWeights]]], part: str):
                key = weights_key(exact, fitted or [], weight_bits, part) if cached else ""
                found = read_weights(key, weight_bits) if cached else None
                if found is None:
                    found = make(exact, fitted, weight_bits, progress)
                    if cached:
                        write_weights(key, found, weight_bits)
                return found

            self.matrices = kept(_quantised_layers, "layers")
            output = kept(_quantised_head, "head")[0]["output"] if head else None

        def calibrate(index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
            """Fit a layer's activations as they arrive."""
            activations: dict[str, ActivationQuantizer] = {}
            self.norms.append((layer.attn_norm, layer.ffn_norm))
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
            return fit_activation_quantizer(
                *(x, activation_bits, outlier_share, thresholds == "static"),
                *(information, outliers, rows),
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
                    self.codebooks.append(fit_codebooks(**seen, weigh=fit == "fitted"))

        dense = copy.copy(exact)
        dense.products = calibrate
        hidden = _run(dense, short, "calibrating" if bar else None, observer=observe)
        if head:
            self.head = output, quantizer_of(hidden, None) if activation_bits else None
        self._finish(exact, bit_exact)

    def _finish(self, exact: Llama, bit_exact: bool) -> None:
        """The rest of construction, from the parts."""
        self.exact, self.bit_exact = exact, bit_exact
        self.fused = isinstance(exact, FoldedLlama)
        layers = exact.weights.layers
        if self.matrices[0]:
            layers = _QuantizedLayers(self.norms, self.matrices)
        super().__init__(dataclasses.replace(exact.weights, layers=layers))

    @classmethod
    def from_parts(
        cls,
        exact: Llama,
        norms: Sequence[tuple[np.ndarray, np.ndarray]],
        matrices: Sequence[dict[str, QuantizedWeights]],
        activations: Sequence[dict[str, ActivationQuantizer]],
        codebooks: Sequence[Codebooks] = (),
        head: tuple[QuantizedWeights, ActivationQuantizer] | None = None,
    ) -> "QuantizedLlama":
        """A bit-exact model of parts made earlier; `exact` is a FoldedLlama if norms are fused."""
        made = cls.__new__(cls)
        made.norms, made.codebooks, made.head = list(norms), list(codebooks), head
        made.matrices, made.activations = list(matrices), list(activations)
        made._finish(exact, True)
        return made

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
            return core_product(hidden, quantizer, matrix, self._norm("output"))
        return self._input("output", hidden, quantizer) @ self._output

    @functools.cached_property
    def _output(self) -> np.ndarray:
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
        return rms_norm(x, np.float32(1), self.config.norm_eps)


def _one_of(name: str, value: str, first: str, second: str) -> None:
    if value not in (first, second):
        raise ValueError(f"{name} must be {first!r} or {second!r}, not {value!r}")


def evenly(samples: Sequence[Sequence[int]], count: int) -> list[Sequence[int]]:
    """At most `count` of the samples, evenly spread."""
    return list(samples[:: -(-len(samples) // count)])


def _quantised_layers(
    exact: Llama,
    samples: Sequence[Sequence[int]] | None,
    bits: int,
    progress: bool | Callable[[int], None],
) -> list[dict[str, QuantizedWeights]]:
    """Each layer's matrices by name, fitted to `samples` or, without, as in the paper."""
    found: list[dict[str, QuantizedWeights]] = []
    if samples is None:
        for index in range(exact.config.layers):
            if callable(progress):
                progress(index)
            layer = exact.weights.layers[index]
            found.append({name: quantize_weights(getattr(layer, name), bits) for name in INPUTS})
        return found

    def products(index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        if callable(progress):
            progress(index)
        hessians: dict[str, np.ndarray] = {}
        found.append({})

        def multiply(name: str, x: np.ndarray) -> np.ndarray:
            x, into = exact.normalised(name, x), INPUTS[name]
            if into not in hessians:
                hessians[into] = x.T @ x / np.float32(len(x))
            matrix = getattr(layer, name)
            found[index][name] = fit_weights(matrix, hessians[into], bits)
            return x @ matrix

        return multiply

    dense = copy.copy(exact)
    dense.products = products
    _run(dense, samples, "fitting, once" if progress is True else None)
    return found


def _quantised_head(
    exact: Llama,
    samples: Sequence[Sequence[int]] | None,
    bits: int,
    progress: bool | Callable[[int], None],
) -> list[dict[str, QuantizedWeights]]:
    """The output matrix as one layer's, fitted to `samples` or, without, as in the paper."""
    if samples is None:
        return [{"output": quantize_weights(exact.weights.output, bits)}]
    hidden = _run(exact, samples, "fitting the head, once" if progress is True else None)
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


class SeparateSamples:
    """Dense attention over concatenated samples, each of which attends to itself only.

    Replaces a ``DecodeAttention`` where all tokens are processed at once. Positions count on across
    samples; rotary encoding is relative, so that has no effect.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        ends = np.cumsum(self._lengths)
        parts = [slice(end - length, end) for length, end in zip(self._lengths, ends, strict=True)]
        rows = [DenseAttention().sequence(q[:, part], k[:, part], v[:, part]) for part in parts]
        return np.concatenate(rows, axis=1)


class _QuantizedLayers(Sequence):
    """Layers with quantised matrices, each dequantised to float32 at each access."""

    def __init__(
        self,
        norms: Sequence[tuple[np.ndarray, np.ndarray]],
        matrices: Sequence[dict[str, QuantizedWeights]],
    ) -> None:
        self._norms = norms
        self._matrices = matrices

    def __len__(self) -> int:
        return len(self._matrices)

    def __getitem__(self, index: int) -> Any:
        return _QuantizedLayer(*self._norms[index], self._matrices[index])


class _QuantizedLayer:
    """In place of a :class:`golden.lm.weights.Layer`; a matrix that is not read costs nothing."""

    def __init__(
        self, attn_norm: np.ndarray, ffn_norm: np.ndarray, matrices: dict[str, QuantizedWeights]
    ) -> None:
        self.attn_norm, self.ffn_norm = attn_norm, ffn_norm
        self._matrices = matrices

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in INPUTS:
            raise AttributeError(name)
        return self._matrices[name].dequantize(np.float32)


def _outliers(x: np.ndarray, count: int, thresholds: tuple[float, float] | None) -> np.ndarray:
    if thresholds is not None:
        return static_outliers(x, *thresholds)
    return dynamic_outliers(x, count)
