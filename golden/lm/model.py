"""The forward pass of a Llama-family model, in float32 NumPy.

One layer at a time over all tokens: x += Wo attention(rope(Wq n), rope(Wk n), Wv n) with
n = rms_norm(x), then x += Wdown (silu(Wgate m) * Wup m) with m = rms_norm(x). Source: Touvron et
al., "LLaMA: Open and Efficient Foundation Language Models", arXiv:2302.13971, and GQA,
arXiv:2305.13245.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from tqdm import tqdm

from golden.algorithms.attention import DecodeAttention, DenseAttention, SequenceAttention
from golden.lm.weights import Layer, Weights

Observer = Callable[[int, str, np.ndarray], None]
"""Called as ``observer(layer, name, array)``; names and shapes as in ``Llama.hidden``."""


class Llama:
    """A model to run; ``weights`` may be of any size."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.config = weights.config

    def hidden(
        self,
        tokens: Sequence[int],
        attentions: Sequence[SequenceAttention] | None = None,
        *,
        start: int = 0,
        observer: Observer | None = None,
        progress: str | None = None,
    ) -> np.ndarray:
        """Normalised hidden state after the last layer, [token, dim], for each of ``tokens``.

        ``attentions`` holds one fresh ``DecodeAttention`` per layer, dense when not given. To
        continue a sequence, give the same ones again and the number of tokens before as ``start``.
        ``observer`` sees, per layer, ``attn`` [token, dim] (what Wq, Wk, Wv multiply), ``q``
        [head, token, d], ``k`` and ``v`` [kv head, token, d] (after RoPE) and ``down``
        [token, ffn] (what Wdown multiplies). ``progress`` names a progress bar on stderr.
        """
        c = self.config
        attentions = attentions or self.dense()
        positions = np.arange(start, start + len(tokens))
        angles = rope_angles(positions, c.rope_dims, c.rope_base, self.weights.rope_factors)
        observe = observer or (lambda layer, name, array: None)
        x = self.weights.embedding[np.asarray(tokens)]
        for index in tqdm(range(c.layers), desc=progress, unit="layer", disable=progress is None):
            layer = self.weights.layers[index]
            n = self.normalise(x, layer.attn_norm)
            multiply = self.products(index, layer)
            q = rope(_heads(multiply("wq", n), c.d), angles)
            k = rope(_heads(multiply("wk", n), c.d), angles)
            v = _heads(multiply("wv", n), c.d)
            for name, array in (("attn", n), ("q", q), ("k", k), ("v", v)):
                observe(index, name, array)
            o = attentions[index].sequence(q, k, v).astype(np.float32, copy=False)
            x = x + multiply("wo", o.transpose(1, 0, 2).reshape(len(tokens), -1))
            m = self.normalise(x, layer.ffn_norm)
            inner = silu(multiply("gate", m)) * multiply("up", m)
            observe(index, "down", inner)
            x = x + multiply("down", inner)
        return self.normalise(x, self.weights.norm)

    def normalise(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        """RMSNorm of hidden states [token, dim]; a model whose products normalise overrides it."""
        return rms_norm(x, gain, self.config.norm_eps)

    def normalised(self, name: str, x: np.ndarray) -> np.ndarray:
        """What matrix `name` multiplies, from what ``multiply`` is given: the same here."""
        return x

    def products(self, index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        """How a layer multiplies: ``multiply(name, x)`` is x [token, in] times that matrix of it.

        Quantised models override this. Names are ``Layer``'s: wq, wk, wv, wo, gate, up, down.
        """
        return lambda name, x: x @ getattr(layer, name)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Scores of the next token, [token, vocab], for hidden states [token, dim]."""
        return hidden @ self.weights.output

    def dense(self) -> list[DecodeAttention]:
        """A fresh attention for each layer."""
        return [self.attention_of(layer) for layer in range(self.config.layers)]

    def attention_of(self, layer: int) -> DecodeAttention:
        """A fresh attention of one layer, all of it; a model that quantises it overrides this."""
        return DenseAttention()


def generate(
    model: Llama,
    prompt: Sequence[int],
    count: int,
    attentions: Sequence[SequenceAttention] | None = None,
) -> list[int]:
    """The ``count`` likeliest tokens after ``prompt``, one by one, each fed back to the model.

    All layers are held in memory while it runs (four bytes a weight).
    """
    weights = model.weights
    model = Llama(
        Weights(
            weights.config,
            weights.embedding,
            [weights.layers[index] for index in range(weights.config.layers)],
            weights.norm,
            weights.output,
            weights.rope_factors,
        )
    )
    attentions = attentions or model.dense()
    made: list[int] = []
    new, start = list(prompt), 0
    while len(made) < count:
        hidden = model.hidden(new, attentions, start=start)
        start += len(new)
        new = [int(model.logits(hidden[-1:]).argmax())]
        made += new
    return made


def in_memory(model: Llama) -> Llama:
    """The same model; a file's layers, or folded ones, are made once and not at each access."""
    made = copy.copy(model)
    layers = [model.weights.layers[index] for index in range(model.config.layers)]
    made.weights = dataclasses.replace(model.weights, layers=layers)
    return made


def rms_norm(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * gain over the last axis."""
    square = np.mean(np.square(x), axis=-1, keepdims=True)
    return x / np.sqrt(square + np.float32(eps)) * gain


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x), written with tanh, which cannot overflow."""
    half = np.float32(0.5)
    return x * (half + half * np.tanh(half * x))


def rope_angles(
    positions: np.ndarray, dims: int, base: float, factors: np.ndarray | None = None
) -> np.ndarray:
    """Unit complex numbers [token, dims / 2]: exp(i * position * base^(-2 pair / dims)).

    Computed in float64, because float32 loses the fraction of large angles.
    """
    frequency = base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    if factors is not None:
        frequency = frequency / factors
    return np.exp(1j * np.outer(positions, frequency)).astype(np.complex64)


def rope(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotate the pairs (2i, 2i + 1) of the leading elements of ``x`` [head, token, d] in float32.

    GGUF files store Wq and Wk permuted for these neighbouring pairs, where the original
    checkpoints pair element i with i + d / 2.
    """
    rotated = x.copy()
    dims = 2 * angles.shape[-1]
    real, imaginary = x[..., 0:dims:2], x[..., 1:dims:2]
    rotated[..., 0:dims:2] = real * angles.real - imaginary * angles.imag
    rotated[..., 1:dims:2] = real * angles.imag + imaginary * angles.real
    return rotated


def _heads(x: np.ndarray, d: int) -> np.ndarray:
    """[token, heads * d] to [head, token, d]."""
    return np.ascontiguousarray(x.reshape(len(x), -1, d).transpose(1, 0, 2))
