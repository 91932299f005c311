"""A language model with KLLM's matrix products (KLLM, sections III-D and V-A).

All seven matrices of each layer and their inputs are quantised; attention, norms,
element-wise functions, embedding and output stay float32. Products are those of the dequantised
operands in float32, which equal :func:`golden.algorithms.kllm.matvec.matvec` but for rounding and
are much faster; or the accelerator's, FP16 in and FP16 out, bit-exact.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from golden.algorithms.attention import DenseAttention
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
from golden.kllm.kllm_core import kllm_core, tables_of
from golden.lm.gradient import fisher_information
from golden.lm.model import Llama
from golden.lm.text import default_text
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


def calibration_samples(
    tokenizer: Tokenizer, samples: int = 16, length: int = 64, text: str | None = None
) -> list[list[int]]:
    """Runs of tokens to train activation codebooks on, [V-A]'s 16 by default.

    They start evenly spread over the second half of `text`, by default ``default_text``; measure on
    tokens of the first half.
    """
    text = default_text() if text is None else text
    half = len(text) // 2
    starts = half + np.arange(samples) * (len(text) - half) // samples
    # A start inside a word would make rare tokens.
    return [tokenizer.encode(text[text.find(" ", start) :], length) for start in starts]


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
) -> ActivationQuantizer:
    """Train on calibration tokens [token, K].

    Static thresholds leave ``share`` / 2 of all calibration values beyond each; the larger of their
    magnitudes is the fixed scale. ``fisher`` [token, K] is the diagonal Fisher information of `x`;
    that of x / s_A, the codebook's values, is s_A^2 times as large. ``outliers`` at each end of a
    token replace the share.
    """
    x = x.astype(np.float16)
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
    return ActivationQuantizer(codebook, share, thresholds, scale, outliers)


class QuantizedLlama(Llama):
    """A model with K-Means weights and activations, quantised when constructed.

    weight_bits, activation_bits
        1 to 8; None: not quantised.
    outlier_share
        Of a token's activations, both ends together; weights have no outliers.
    outliers
        At each end of a token, however long it is, in place of the share: a core's own number.
    thresholds
        Of outliers: ``dynamic``, each token's own by Orizuru (KLLM), or ``static``, fixed by
        calibration along with the scale (KLLM-S).
    fisher
        Weight the calibration activations by their diagonal Fisher information [V-A].
    bit_exact
        Compute the products by :func:`golden.kllm.kllm_core.kllm_core`, bit-exactly as the
        accelerator does; the attribute may be set later too. It needs quantised weights and
        activations and dynamic thresholds: the accelerator has no other mode.
    progress
        Whether to show a bar on standard error, or a function that is called with the number of
        each layer that begins.

    ``activations[layer][input]`` is how each input of ``INPUTS`` is quantised, ``matrices[layer]``
    holds each layer's :class:`QuantizedWeights` by name, ``norms[layer]`` its two norms' gains.
    """

    def __init__(
        self,
        model: Llama,
        samples: Sequence[Sequence[int]],
        *,
        weight_bits: int | None = 4,
        activation_bits: int | None = 4,
        outlier_share: float = 0.01,
        outliers: int | None = None,
        thresholds: str = "dynamic",
        fisher: bool = False,
        bit_exact: bool = False,
        progress: bool | Callable[[int], None] = False,
    ) -> None:
        if thresholds not in ("dynamic", "static"):
            raise ValueError(f"thresholds must be 'dynamic' or 'static', not {thresholds!r}")
        if bit_exact and thresholds != "dynamic":
            raise ValueError("bit_exact: thresholds must be 'dynamic'")
        if bit_exact and None in (weight_bits, activation_bits):
            raise ValueError("bit_exact: weights and activations must both be quantised")
        outlier_count(1, outlier_share)  # raises ValueError for a share out of range
        bar = progress is True
        sensitivity = fisher_information(model, samples, progress=bar) if fisher else {}
        self.norms: list[tuple[np.ndarray, np.ndarray]] = []
        self.bit_exact = bit_exact
        self.matrices: list[dict[str, QuantizedWeights]] = []
        self.activations: list[dict[str, ActivationQuantizer]] = []

        def calibrate(index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
            """Quantise a layer's weights now and its activations as they arrive."""
            if callable(progress):
                progress(index)
            matrices, activations = {}, {}
            self.norms.append((layer.attn_norm, layer.ffn_norm))
            self.matrices.append(matrices)
            self.activations.append(activations)

            def multiply(name: str, x: np.ndarray) -> np.ndarray:
                matrix = getattr(layer, name)
                if weight_bits is not None:
                    matrices[name] = quantize_weights(matrix, weight_bits)
                into = INPUTS[name]
                if activation_bits is not None and into not in activations:
                    activations[into] = fit_activation_quantizer(
                        x,
                        activation_bits,
                        outlier_share,
                        thresholds == "static",
                        sensitivity.get((index, into)),
                        outliers,
                    )
                return x @ matrix

            return multiply

        dense = Llama(model.weights)
        dense.products = calibrate
        lengths = [len(sample) for sample in samples]
        dense.hidden(
            [token for sample in samples for token in sample],
            [SeparateSamples(lengths) for _ in range(model.config.layers)],
            progress="quantising" if bar else None,
        )
        layers = model.weights.layers
        if weight_bits is not None:
            layers = _QuantizedLayers(self.norms, self.matrices)
        super().__init__(dataclasses.replace(model.weights, layers=layers))

    @classmethod
    def from_parts(
        cls,
        model: Llama,
        norms: Sequence[tuple[np.ndarray, np.ndarray]],
        matrices: Sequence[dict[str, QuantizedWeights]],
        activations: Sequence[dict[str, ActivationQuantizer]],
    ) -> "QuantizedLlama":
        """A bit-exact model of parts made earlier: ``norms``, ``matrices``, ``activations``."""
        made = cls.__new__(cls)
        made.bit_exact, made.norms = True, list(norms)
        made.matrices, made.activations = list(matrices), list(activations)
        layers = _QuantizedLayers(made.norms, made.matrices)
        Llama.__init__(made, dataclasses.replace(model.weights, layers=layers))
        return made

    def products(self, index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        quantizers, matrices = self.activations[index], self.matrices[index]
        if self.bit_exact:
            return lambda name, x: core_product(x, quantizers[INPUTS[name]], matrices[name])
        seen: dict[str, np.ndarray] = {}

        def multiply(name: str, x: np.ndarray) -> np.ndarray:
            into = INPUTS[name]
            if into not in seen:
                seen[into] = quantizers[into](x).dequantize(np.float32) if quantizers else x
            return seen[into] @ getattr(layer, name)

        return multiply


def core_product(
    x: np.ndarray, quantizer: ActivationQuantizer, matrix: QuantizedWeights
) -> np.ndarray:
    """``float32[token, N]``: the accelerator's FP16 results for tokens [token, K], made FP16."""
    tables = tables_of(quantizer.codebook, matrix.codebook)
    outliers = quantizer.count(x.shape[-1])
    y, _ = kllm_core(x.astype(np.float16), tables, matrix.index, matrix.scale, outliers)
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
