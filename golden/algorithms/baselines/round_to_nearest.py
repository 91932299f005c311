"""Round to nearest: integer quantisation of weights and activations, KLLM's baseline RTN [V-A].

Symmetric: x becomes s q with the integer q = round(x / s), ties to even, of magnitude at most
Q = 2^(bits - 1) - 1, and s = max |x| / Q. One scale for each output channel of a matrix, one for
each token of activations; 1 where all values are zero. No outliers, no calibration.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from golden.lm.model import Llama
from golden.lm.weights import Layer, LazyLayers

MATRICES = ("wq", "wk", "wv", "wo", "gate", "up", "down")


def round_to_nearest(x: np.ndarray, bits: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers ``int8`` of x's shape and their scales, of x's dtype, with `axis` kept at length 1.

    ``bits`` is 2 to 8; values along `axis` share a scale.
    """
    _check(bits)
    largest = (1 << bits - 1) - 1
    scale = np.abs(x).max(axis=axis, keepdims=True) / largest
    scale = np.where(scale > 0, scale, scale.dtype.type(1))
    # Rounding of the scale may leave x / s a little above Q.
    return np.clip(np.rint(x / scale), -largest, largest).astype(np.int8), scale


def rounded(x: np.ndarray, bits: int | None, axis: int) -> np.ndarray:
    """`x` rounded to its integers times their scale; `x` itself where `bits` is None."""
    if bits is None:
        return x
    integers, scale = round_to_nearest(x, bits, axis)
    return integers * scale


class RoundToNearestLlama(Llama):
    """A model with rounded weights and activations in all its layers' matrix products.

    ``weight_bits`` and ``activation_bits`` are 2 to 8; None: not quantised. Attention,
    norms, embedding and output are float32.
    """

    def __init__(
        self, model: Llama, *, weight_bits: int | None = 4, activation_bits: int | None = 4
    ) -> None:
        self.check(weight_bits, activation_bits)
        layers = _RoundedLayers(model.weights.layers, weight_bits)
        super().__init__(dataclasses.replace(model.weights, layers=layers))
        self._bits = activation_bits

    @staticmethod
    def check(weight_bits: int | None, activation_bits: int | None) -> None:
        """Raise ``ValueError`` for bits that no integer has."""
        _check(weight_bits)
        _check(activation_bits)

    def products(self, index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        return lambda name, x: rounded(x, self._bits, axis=-1) @ getattr(layer, name)


class _RoundedLayers(LazyLayers):
    """Layers whose matrices are rounded at each access."""

    def __init__(self, layers: Sequence[Layer], bits: int | None) -> None:
        self._layers = layers
        self._bits = bits

    def __len__(self) -> int:
        return len(self._layers)

    def layer(self, number: int) -> Layer:
        layer = self._layers[number]
        matrices = {name: rounded(getattr(layer, name), self._bits, axis=0) for name in MATRICES}
        return dataclasses.replace(layer, **matrices)


def _check(bits: int | None) -> None:
    if bits is not None and not 2 <= bits <= 8:
        raise ValueError(f"bits must be between 2 and 8, not {bits}")
