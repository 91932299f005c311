"""Channels made alike before they are quantised, by factors that the model does not notice.

Matrices that follow one another undo each other's factors: what `up` has less, `down` has more, and
so have wv and wo of each kv head, wk and wq of each pair that RoPE rotates. Nothing of it is left
for the hardware to do. Source: Xiao et al., SmoothQuant, arXiv:2211.10438; the factors differ.

A quantiser errs by about as much in every channel k, in units of the vector's scale. If that grows
as the root of the sum of x_k^2 / f_k^2, the error of a product grows with it times the root of the
sum of f_k^2 |W_k|^2, W_k being row k, and is least for f_k^2 = |x_k| / |W_k|; so it is for the
error of W with x given. Scores of queries and keys have f^2 = |q| / |k| in the same way.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from golden.lm.model import Llama
from golden.lm.weights import Config, Layer

LARGEST = 32
"""Factors lie between the inverse of this and this, relative to their layer's mean one."""


@dataclasses.dataclass(frozen=True, eq=False)
class Factors:
    """What the input of a product is divided by, and the matrix multiplied."""

    key: np.ndarray
    """[kv heads, d]: of keys, with which queries are multiplied; alike in a rotated pair."""
    value: np.ndarray
    """[kv heads, d]: of values, and so of what wo multiplies."""
    inner: np.ndarray
    """[ffn]: of what down multiplies."""


def balanced(
    model: Llama,
    run: Callable[..., np.ndarray],
) -> Llama:
    """A model equal to `model` but for rounding; ``run(model, observer=...)`` runs it on samples."""
    c, found = model.config, []
    seen: dict[str, np.ndarray] = {}
    watched = copy.copy(model)

    def observe(index: int, name: str, array: np.ndarray) -> None:
        if name in "qk":
            # [head, token, d] to [kv head, d]
            size = _size(array.reshape(c.kv_heads, -1, c.d), axis=1)
            pairs = size[:, : c.rope_dims].reshape(c.kv_heads, -1, 2)
            pairs[...] = _size(pairs, axis=2)[..., None]
            seen[name] = size

    def products(index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        multiply = model.products(index, layer)

        def sized(name: str, x: np.ndarray) -> np.ndarray:
            if name == "wo":
                seen["value"] = _channels(x, layer.wo, c)
            elif name == "down":
                inner = factors(np.abs(x).mean(axis=0), _size(layer.down, axis=1))
                found.append(Factors(factors(seen["k"], seen["q"]), seen["value"], inner))
            return multiply(name, x)

        return sized

    watched.products = products
    run(watched, observer=observe)
    made = copy.copy(model)
    layers = _BalancedLayers(model.weights.layers, found, c)
    made.weights = dataclasses.replace(model.weights, layers=layers)
    return made


def factors(divided: np.ndarray, multiplied: np.ndarray) -> np.ndarray:
    """Roots of ratios of sizes; 1 where either is 0."""
    both = (divided > 0) & (multiplied > 0)
    ratio = np.divide(divided, multiplied, out=np.ones_like(divided), where=both)
    found = np.sqrt(ratio)
    mean = np.exp(np.log(found).mean())
    return (mean * np.clip(found / mean, 1 / LARGEST, LARGEST)).astype(np.float32)


def _channels(x: np.ndarray, wo: np.ndarray, c: Config) -> np.ndarray:
    """Factors [kv head, d] of wo's input [token, heads * d]."""
    size = np.abs(x).mean(axis=0).reshape(c.kv_heads, -1, c.d).mean(axis=1)
    rows = _size(wo, axis=1).reshape(c.kv_heads, -1, c.d)
    return factors(size, _size(rows, axis=1))


def _size(x: np.ndarray, axis: int) -> np.ndarray:
    return np.sqrt(np.square(x).mean(axis=axis))


class _BalancedLayers(Sequence):
    """Layers balanced at each access, so that memory holds one."""

    def __init__(self, layers: Sequence[Layer], factors: Sequence[Factors], config: Config) -> None:
        self._layers, self._factors, self._config = layers, factors, config

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, index: int) -> Layer:
        layer, f, c = self._layers[index], self._factors[index], self._config
        group = c.heads // c.kv_heads
        return dataclasses.replace(
            layer,
            wq=layer.wq * np.repeat(f.key, group, axis=0).ravel(),
            wk=layer.wk / f.key.ravel(),
            wv=layer.wv / f.value.ravel(),
            wo=layer.wo * np.repeat(f.value, group, axis=0).ravel()[:, None],
            up=layer.up / f.inner,
            down=layer.down * f.inner[:, None],
        )
