"""The model with its norms' gains in the matrices that follow (KLLM, section III-C2).

The vector that a product multiplies is then the residual stream itself, and RMSNorm nothing but a
factor of the product. A rotation R of the stream can be folded in as well: RMSNorm without a gain
commutes with it, so (x R) (R^T W) = x W. It spreads single large elements over all of them
(Ashkboos et al., QuaRot, arXiv:2404.00456), and is no work for the hardware. With KLLM's codebooks
and outliers it does harm: in eleven layers of SmolLM2-135M, activations rotated cost their products
twice the error, because the largest elements are FP16 anyway and K-Means fits the rest.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from golden.lm.model import Llama, rms_norm
from golden.lm.weights import Layer, LazyLayers

NORMED = ("wq", "wk", "wv", "gate", "up")
"""Matrices whose input a norm makes."""


class FoldedLlama(Llama):
    """A float model whose products divide the residual stream by its RMS.

    Equal to `model` but for rounding; ``hidden`` returns the residual stream as it is.

    rotate
        Rotate the residual stream, and V within heads, by :func:`rotation`; or an orthogonal matrix
        [dim, dim], which rotates the stream alone.

    :raises ValueError: for a rotation where a norm follows ``wo`` or ``down``, as in Gemma 3.
    """

    def __init__(self, model: Llama, rotate: bool | np.ndarray) -> None:
        weights = model.weights
        c = weights.config
        rotations = None
        if rotate is not False and not {"wo", "down"}.isdisjoint(c.normed):
            raise ValueError("a residual stream cannot be rotated where what is added has a norm")
        embedding, output = weights.embedding, weights.output * weights.norm[:, None]
        if rotate is not False:
            if rotate is True:
                rotations = rotation(c.dim), rotation(c.d)
            else:
                rotations = rotate.astype(np.float32), np.eye(c.d, dtype=np.float32)
            stream, _ = rotations
            embedding, output = embedding @ stream, stream.T @ output
        layers = _FoldedLayers(weights.layers, c.d, rotations)
        self.ones = np.ones(c.dim, np.float32)
        super().__init__(
            dataclasses.replace(
                weights, embedding=embedding, layers=layers, output=output, norm=self.ones
            )
        )

    def normalise(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x

    def products(self, index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        return lambda name, x: self.normalised(name, x) @ getattr(layer, name)

    def normalised(self, name: str, x: np.ndarray) -> np.ndarray:
        """What matrix `name` multiplies, from the vectors that its product is given."""
        return rms_norm(x, self.ones, self.config.norm_eps) if name in (*NORMED, "output") else x

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        return self.normalised("output", hidden) @ self.weights.output


def centred(writes: np.ndarray) -> np.ndarray:
    """A matrix [in, dim] that writes the residual stream, or a bias [dim], less its rows' means.

    With all of them centred, embedding and biases too, the stream is what it was less its mean, so
    that RMSNorm of it is LayerNorm of the former one: the accelerator needs no mean. Gain and
    offset of LayerNorm belong in the rows and the bias of the matrices that follow. Source:
    Ashkboos et al., SliceGPT, arXiv:2401.15024, section 3.2.
    """
    return writes - writes.mean(axis=-1, keepdims=True)


def rotation(n: int) -> np.ndarray:
    """``float32[n, n]``: an orthogonal matrix, always the same for an `n`."""
    q, r = np.linalg.qr(np.random.default_rng(n).normal(size=(n, n)))
    return (q * np.sign(np.diag(r))).astype(np.float32)


class _FoldedLayers(LazyLayers):
    """Layers folded at each access, so that memory holds one."""

    def __init__(
        self,
        layers: Sequence[Layer],
        d: int,
        rotations: tuple[np.ndarray, np.ndarray] | None,
    ) -> None:
        self._layers, self._d, self._rotations = layers, d, rotations

    def __len__(self) -> int:
        return len(self._layers)

    def layer(self, number: int) -> Layer:
        layer = self._layers[number]
        gains = {name: layer.attn_norm if name[0] == "w" else layer.ffn_norm for name in NORMED}
        new: dict[str, Any] = {
            name: gain[:, None] * getattr(layer, name) for name, gain in gains.items()
        }
        new |= {"wo": layer.wo, "down": layer.down}
        if self._rotations is not None:
            stream, head = self._rotations
            for name in NORMED:
                new[name] = stream.T @ new[name]
            heads = new["wv"].reshape(len(new["wv"]), -1, self._d) @ head
            new["wv"] = heads.reshape(new["wv"].shape)
            heads = head.T @ layer.wo.reshape(-1, self._d, layer.wo.shape[1])
            new["wo"] = heads.reshape(layer.wo.shape) @ stream
            new["down"] = layer.down @ stream
            if "wv" in layer.biases:
                turned = (layer.biases["wv"].reshape(-1, self._d) @ head).ravel()
                new["biases"] = {**layer.biases, "wv": turned}
        ones = np.ones_like(layer.attn_norm)
        return dataclasses.replace(layer, attn_norm=ones, ffn_norm=ones, **new)
