"""SmoothQuant: scales between activations and weights before both are rounded to nearest.

Source: Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models", arXiv:2211.10438, equation 4. As published, the inputs of ``wq``, ``wk``, ``wv``,
``gate`` and ``up`` are smoothed, because their scales fold into the norm before; inputs of ``wo``
and ``down`` are not. The paper has 8 bits; KLLM's Table II has it at 4.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from golden.algorithms.baselines.round_to_nearest import RoundToNearestLlama
from golden.algorithms.kllm.calibration import SeparateSamples
from golden.lm.model import Llama
from golden.lm.weights import INPUTS, Layer, LazyLayers

NORMS = {"attn": "attn_norm", "ffn": "ffn_norm"}
"""The inputs that are smoothed, and the norms that make them."""

_LEAST = 1e-5
"""A scale's and a weight's least magnitude, so that channels without either stay finite."""


class SmoothQuantLlama(RoundToNearestLlama):
    """A model with smoothed and then rounded weights and activations.

    samples
        Runs of tokens that show the largest activations.
    alpha
        Share of an activation's magnitude that moves to the weights: 0 to 1.
    weight_bits, activation_bits
        2 to 8; None: not quantised.
    """

    def __init__(
        self,
        model: Llama,
        samples: Sequence[Sequence[int]],
        *,
        weight_bits: int | None = 4,
        activation_bits: int | None = 4,
        alpha: float = 0.5,
    ) -> None:
        self.check(weight_bits, activation_bits, alpha=alpha)
        maxima = largest_inputs(model, samples)
        layers = _SmoothLayers(model.weights.layers, maxima, alpha)
        smooth = Llama(dataclasses.replace(model.weights, layers=layers))
        super().__init__(smooth, weight_bits=weight_bits, activation_bits=activation_bits)

    @staticmethod
    def check(
        weight_bits: int | None,
        activation_bits: int | None,
        rotate: bool = False,
        clip: float = 1.0,
        alpha: float = 0.5,
    ) -> None:
        RoundToNearestLlama.check(weight_bits, activation_bits, rotate, clip)
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be between 0 and 1, not {alpha}")


def largest_inputs(model: Llama, samples: Sequence[Sequence[int]]) -> list[dict[str, np.ndarray]]:
    """For each layer, the largest magnitude of each element of the inputs of ``INPUTS`` by name."""
    maxima: list[dict[str, np.ndarray]] = [{} for _ in range(model.config.layers)]

    def watch(index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        multiply = model.products(index, layer)

        def watched(name: str, x: np.ndarray) -> np.ndarray:
            maxima[index].setdefault(INPUTS[name], np.abs(x).max(axis=0))
            return multiply(name, x)

        return watched

    watching = copy.copy(model)
    setattr(watching, "products", watch)  # noqa: B010
    lengths = [len(sample) for sample in samples]
    tokens = [token for sample in samples for token in sample]
    watching.hidden(tokens, [SeparateSamples(lengths) for _ in maxima])
    return maxima


class _SmoothLayers(LazyLayers):
    """Layers whose norms divide by the scales that their matrices multiply by."""

    def __init__(
        self, layers: Sequence[Layer], maxima: Sequence[dict[str, np.ndarray]], alpha: float
    ) -> None:
        self._layers, self._maxima, self._alpha = layers, maxima, alpha

    def __len__(self) -> int:
        return len(self._layers)

    def layer(self, number: int) -> Layer:
        layer = self._layers[number]
        new: dict[str, Any] = {}
        for into, norm in NORMS.items():
            matrices = {name: getattr(layer, name) for name in INPUTS if INPUTS[name] == into}
            weights = np.max([np.abs(matrix).max(axis=1) for matrix in matrices.values()], axis=0)
            scale = self._maxima[number][into] ** self._alpha
            scale = scale / np.maximum(weights, _LEAST) ** (1 - self._alpha)
            scale = np.maximum(scale, _LEAST).astype(np.float32)
            new |= {name: matrix * scale[:, None] for name, matrix in matrices.items()}
            new[norm] = getattr(layer, norm) / scale
        return dataclasses.replace(layer, **new)
