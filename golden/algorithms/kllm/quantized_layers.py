"""Layers of a language model whose matrices are quantised."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from golden.algorithms.kllm.quantize import QuantizedWeights
from golden.lm.weights import INPUTS, LazyLayers


class QuantizedLayers(LazyLayers):
    """Layers with quantised matrices, made at each access."""

    def __init__(
        self,
        norms: Sequence[tuple[np.ndarray, np.ndarray]],
        matrices: Sequence[dict[str, QuantizedWeights]],
        biases: Sequence[Mapping[str, np.ndarray]],
    ) -> None:
        self._norms = norms
        self._matrices = matrices
        self._biases = biases

    def __len__(self) -> int:
        return len(self._matrices)

    def layer(self, number: int) -> Any:
        return QuantizedLayer(*self._norms[number], self._matrices[number], self._biases[number])


class QuantizedLayer:
    """In place of a :class:`golden.lm.weights.Layer`; a matrix that is not read costs nothing.

    The others are dequantised to float32 when they are first read.
    """

    def __init__(
        self,
        attn_norm: np.ndarray,
        ffn_norm: np.ndarray,
        matrices: dict[str, QuantizedWeights],
        biases: Mapping[str, np.ndarray],
    ) -> None:
        self.attn_norm, self.ffn_norm = attn_norm, ffn_norm
        self.biases = biases
        self.norms: dict[str, np.ndarray] = {}
        self._matrices = matrices

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in INPUTS:
            raise AttributeError(name)
        matrix = self._matrices[name].dequantize(np.float32)
        setattr(self, name, matrix)  # the next time, this is not called
        return matrix
