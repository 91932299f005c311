"""Round to nearest: integer quantisation of weights and activations, KLLM's baseline RTN [V-A].

Symmetric: x becomes s q with the integer q = round(x / s), ties to even, of magnitude at most
Q = 2^(bits - 1) - 1, and s = max |x| / Q. One scale for each output channel of a matrix, one for
each token of activations; 1 where all values are zero. No outliers, no calibration.

With rotation it is the part of QuaRot (Ashkboos et al., arXiv:2404.00456) that costs little, the
paper's "QuaRot-RTN" without a quantised cache: gains of norms are in the matrices, the residual
stream is rotated by a Hadamard matrix with random signs, offline, and the inputs of ``wo`` and
``down`` by a Hadamard matrix as they arrive. The paper's transform of ``wo``'s input is partly
folded into ``wv``; both have the same product.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from golden.algorithms.baselines.hadamard import hadamard_matrix, hadamard_transform
from golden.algorithms.kllm.fold import FoldedLlama
from golden.lm.model import Llama
from golden.lm.weights import Layer, LazyLayers

ONLINE = ("wo", "down")
"""Matrices whose inputs are rotated as they arrive."""

_SEED = 1

MATRICES = ("wq", "wk", "wv", "wo", "gate", "up", "down")


def round_to_nearest(
    x: np.ndarray, bits: int, axis: int, clip: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Integers ``int8`` of x's shape and their scales, of x's dtype, with `axis` kept at length 1.

    ``bits`` is 2 to 8; values along `axis` share a scale, by which ``clip`` of their largest
    magnitude is the largest integer.
    """
    _check(bits)
    largest = (1 << bits - 1) - 1
    scale = np.abs(x).max(axis=axis, keepdims=True) * x.dtype.type(clip) / largest
    scale = np.where(scale > 0, scale, scale.dtype.type(1))
    # Rounding of the scale may leave x / s a little above Q.
    return np.clip(np.rint(x / scale), -largest, largest).astype(np.int8), scale


def rounded(x: np.ndarray, bits: int | None, axis: int, clip: float = 1.0) -> np.ndarray:
    """`x` rounded to its integers times their scale; `x` itself where `bits` is None."""
    if bits is None:
        return x
    integers, scale = round_to_nearest(x, bits, axis, clip)
    return integers * scale


class RoundToNearestLlama(Llama):
    """A model with rounded weights and activations in all its layers' matrix products.

    ``weight_bits`` and ``activation_bits`` are 2 to 8; None: not quantised. Attention,
    norms, embedding and output are float32. ``rotate`` is QuaRot's rotation, and ``clip`` the share
    of a token's largest activation that gets the largest integer (QuaRot: 0.9). ``exact`` is the
    float model that is rounded.
    """

    def __init__(
        self,
        model: Llama,
        *,
        weight_bits: int | None = 4,
        activation_bits: int | None = 4,
        rotate: bool = False,
        clip: float = 1.0,
    ) -> None:
        self.check(weight_bits, activation_bits, rotate, clip)
        self._online = ONLINE if rotate else ()
        if rotate:
            model = FoldedLlama(model, hadamard_matrix(model.config.dim, _SEED))
        self.exact = model
        layers = _RoundedLayers(model.weights.layers, weight_bits, self._online)
        super().__init__(dataclasses.replace(model.weights, layers=layers))
        self._bits, self._clip = activation_bits, clip

    @staticmethod
    def check(
        weight_bits: int | None, activation_bits: int | None, rotate: bool, clip: float
    ) -> None:
        """Raise ``ValueError`` for bits that no integer has, and a clip that is no share."""
        _check(weight_bits)
        _check(activation_bits)
        if not 0 < clip <= 1:
            raise ValueError(f"clip must be above 0 and at most 1, not {clip}")

    def normalise(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return self.exact.normalise(x, gain)

    def products(self, index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        def multiply(name: str, x: np.ndarray) -> np.ndarray:
            x = self.exact.normalised(name, x)
            if name in self._online:
                x = hadamard_transform(x)
            return rounded(x, self._bits, axis=-1, clip=self._clip) @ getattr(layer, name)

        return multiply

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        return self.exact.logits(hidden)


class _RoundedLayers(LazyLayers):
    """Layers whose matrices are rounded at each access."""

    def __init__(
        self, layers: Sequence[Layer], bits: int | None, online: Sequence[str] = ()
    ) -> None:
        self._layers = layers
        self._bits = bits
        self._online = online

    def __len__(self) -> int:
        return len(self._layers)

    def layer(self, number: int) -> Layer:
        layer = self._layers[number]
        matrices: dict[str, Any] = {name: getattr(layer, name) for name in MATRICES}
        for name in self._online:
            # Each column is transformed as the inputs are, so the products are the same.
            matrices[name] = np.ascontiguousarray(hadamard_transform(matrices[name].T).T)
        matrices = {name: rounded(matrix, self._bits, axis=0) for name, matrix in matrices.items()}
        return dataclasses.replace(layer, **matrices)


def _check(bits: int | None) -> None:
    if bits is not None and not 2 <= bits <= 8:
        raise ValueError(f"bits must be between 2 and 8, not {bits}")
