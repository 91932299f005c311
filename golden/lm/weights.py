"""Sizes and weights of a Llama-family model, wherever they come from."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np


@dataclass(frozen=True)
class Local:
    """Layers in which a token sees the last `window` tokens only, its own included.

    ``rope_base`` is these layers'; their rotation frequencies are not stretched.
    """

    layers: frozenset[int]
    window: int
    rope_base: float


@dataclass(frozen=True)
class Config:
    """Sizes and constants of a Llama-family model."""

    layers: int
    heads: int
    kv_heads: int
    d: int
    """Elements of one head."""
    dim: int
    """Elements of the hidden state."""
    ffn: int
    vocab: int
    context: int
    """Most tokens the model was trained to see at once."""
    rope_base: float
    rope_dims: int
    """Leading elements of each head that are rotated."""
    norm_eps: float
    activation: str = "silu"
    """The gate's: a key of ``golden.lm.model.ACTIVATIONS``."""
    embedding_scale: float = 1.0
    """Multiplies the embedding, but not the output matrix, which may be the same."""
    normed: tuple[str, ...] = ()
    """Matrices whose results are normalised: the keys of every layer's ``norms``."""
    local: Local | None = None

    def window(self, layer: int) -> int | None:
        """Tokens that a layer's tokens see; None for all before."""
        return self.local.window if self.local and layer in self.local.layers else None

    @property
    def beyond_llama(self) -> str:
        """What the layers have that Llama's and Qwen2's do not, in words; empty if nothing."""
        found = [f"norms of the products {', '.join(self.normed)}"] if self.normed else []
        found += [] if self.activation == "silu" else [f"the activation {self.activation}"]
        found += [f"layers with a window of {self.local.window} tokens"] if self.local else []
        return " and ".join(found)


@dataclass(frozen=True)
class Layer:
    """Float32 weights of one layer; matrices are [in, out], so activations multiply from the left.

    The columns of ``wq`` and ``wk`` are ordered so that RoPE rotates the pairs (2i, 2i + 1).

    biases
        [out] by the matrix to whose product they are added.
    norms
        Gains of RMSNorms of a matrix' product, after its bias and before RoPE or the residual sum:
        [d] for each head of wq or wk, [dim] for wo or down.
    """

    attn_norm: np.ndarray
    wq: np.ndarray
    wk: np.ndarray
    wv: np.ndarray
    wo: np.ndarray
    ffn_norm: np.ndarray
    gate: np.ndarray
    up: np.ndarray
    down: np.ndarray
    biases: Mapping[str, np.ndarray] = field(default_factory=dict)
    norms: Mapping[str, np.ndarray] = field(default_factory=dict)


def matrix_shapes(config: Config) -> dict[str, tuple[int, int]]:
    """(K, N) of a layer's matrices by name, in the order of their products."""
    q, kv = config.heads * config.d, config.kv_heads * config.d
    return {
        "wq": (config.dim, q),
        "wk": (config.dim, kv),
        "wv": (config.dim, kv),
        "wo": (q, config.dim),
        "gate": (config.dim, config.ffn),
        "up": (config.dim, config.ffn),
        "down": (config.ffn, config.dim),
    }


INPUTS = {
    "wq": "attn",
    "wk": "attn",
    "wv": "attn",
    "wo": "wo",
    "gate": "ffn",
    "up": "ffn",
    "down": "down",
}
"""The matrices of a layer, and the name of what each multiplies; some share it."""


class LazyLayers(Sequence[Layer]):
    """Layers that are made at each access, so that memory holds one of them."""

    @abstractmethod
    def layer(self, number: int) -> Layer:
        """Layer `number`, from 0 to the number of layers - 1."""

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Layer]: ...
    def __getitem__(self, index: int | slice) -> Layer | Sequence[Layer]:
        chosen = range(len(self))[index]
        return self.layer(chosen) if isinstance(chosen, int) else [*map(self.layer, chosen)]


@dataclass(frozen=True)
class Weights:
    """All float32 weights: ``embedding`` [vocab, dim], ``norm`` [dim], ``output`` [dim, vocab].

    ``rope_factors`` [rope_dims / 2] divide the rotation frequencies of layers that see all tokens
    (Llama 3, and linear stretching); None means ones.
    """

    config: Config
    embedding: np.ndarray
    layers: Sequence[Layer]
    norm: np.ndarray
    output: np.ndarray
    rope_factors: np.ndarray | None = None
