"""The forward pass of a Llama-family model, in float32 NumPy.

One layer at a time over all tokens: x += Wo attention(rope(Wq n), rope(Wk n), Wv n) with
n = rms_norm(x), then x += Wdown (silu(Wgate m) * Wup m) with m = rms_norm(x). Products may have a
bias and a norm, and the gate another activation, as the layer's and the model's data say. Source:
Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", arXiv:2302.13971, and GQA,
arXiv:2305.13245; for other architectures see :mod:`golden.lm.architectures`.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from tqdm import tqdm

from golden.algorithms.attention import (
    DecodeAttention,
    DenseAttention,
    SequenceAttention,
    WindowAttention,
)
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
        start: int | Sequence[int] = 0,
        observer: Observer | None = None,
        progress: str | None = None,
    ) -> np.ndarray:
        """Normalised hidden state after the last layer, [token, dim], for each of ``tokens``.

        ``attentions`` holds one fresh ``DecodeAttention`` per layer, dense when not given. To
        continue a sequence, give the same ones again and the number of tokens before as ``start``;
        for tokens of several sequences the position of each, and attentions that tell them apart.
        ``observer`` sees, per layer, ``attn`` [token, dim] (what Wq, Wk, Wv multiply), ``q``
        [head, token, d], ``k`` and ``v`` [kv head, token, d] (after RoPE) and ``down``
        [token, ffn] (what Wdown multiplies). ``progress`` names a progress bar on stderr.
        """
        c = self.config
        attentions = attentions or self.dense()
        positions = (
            np.arange(start, start + len(tokens)) if isinstance(start, int) else np.array(start)
        )
        angles = self.angles(positions)
        observe = observer or (lambda layer, name, array: None)
        x = self.embed(tokens)
        for index in tqdm(range(c.layers), desc=progress, unit="layer", disable=progress is None):
            layer = self.weights.layers[index]
            n = self.normalise(x, layer.attn_norm)
            combine = functools.partial(self.combine, index)
            turn = functools.partial(self.turn, index, positions, angles=angles[index])
            multiply = self._finished(layer, self.products(index, layer), combine)
            q = turn(_heads(multiply("wq", n), c.d))
            k = turn(_heads(multiply("wk", n), c.d))
            v = _heads(multiply("wv", n), c.d)
            for name, array in (("attn", n), ("q", q), ("k", k), ("v", v)):
                observe(index, name, array)
            o = attentions[index].sequence(q, k, v).astype(np.float32, copy=False)
            x = combine("sum", x, multiply("wo", o.transpose(1, 0, 2).reshape(len(tokens), -1)))
            m = self.normalise(x, layer.ffn_norm)
            inner = combine(c.activation, multiply("gate", m), multiply("up", m))
            observe(index, "down", inner)
            x = combine("sum", x, multiply("down", inner))
        return self.normalise(x, self.weights.norm)

    def combine(self, index: int, op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """What layer `index` makes of two vectors of each token, [token, any].

        op
            ``sum``, or the name of an activation, whose value of `a` is multiplied by `b`. A model
            whose accelerator computes it overrides this.
        """
        return a + b if op == "sum" else ACTIVATIONS[op](a) * b

    def turn(
        self, index: int, positions: np.ndarray, x: np.ndarray, angles: np.ndarray
    ) -> np.ndarray:
        """Rotary encoding of layer `index`: :func:`rope` of `x` [head, token, d] at `positions`.

        A model whose accelerator computes it overrides this.
        """
        return rope(x, angles)

    def embed(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """What the first layer gets, float32 [token, dim]."""
        return self.weights.embedding[np.asarray(tokens)] * np.float32(self.config.embedding_scale)

    def angles(self, positions: np.ndarray) -> list[np.ndarray]:
        """:func:`rope_angles` of each layer; layers of one kind share an array."""
        c = self.config
        usual = rope_angles(positions, c.rope_dims, c.rope_base, self.weights.rope_factors)
        if c.local is None:
            return [usual] * c.layers
        local = rope_angles(positions, c.rope_dims, c.local.rope_base)
        return [usual if c.window(layer) is None else local for layer in range(c.layers)]

    def _finished(
        self,
        layer: Layer,
        multiply: Callable[[str, np.ndarray], np.ndarray],
        combine: Callable[[str, np.ndarray, np.ndarray], np.ndarray],
    ) -> Callable[[str, np.ndarray], np.ndarray]:
        """`multiply` with the layer's bias and norm of each product."""

        def finished(name: str, x: np.ndarray) -> np.ndarray:
            y = multiply(name, x)
            if name in layer.biases:
                y = combine("sum", y, np.broadcast_to(layer.biases[name], y.shape))
            if name in layer.norms:
                gain = layer.norms[name]
                y = rms_norm(y.reshape(len(y), -1, len(gain)), gain, self.config.norm_eps)
                y = y.reshape(len(x), -1)
            return y

        return finished

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
        """A fresh attention of the model's own for each layer."""
        return [self.attention_of(layer) for layer in range(self.config.layers)]

    def attentions(
        self, policy: Callable[[int], Sequence[DecodeAttention]]
    ) -> list[DecodeAttention]:
        """Attentions of all layers, by a policy where they see all tokens.

        ``policy(count)`` gives fresh ones for that many layers, in their order. Layers that see a
        window of tokens have the model's own: policies say which of all tokens a layer reads.
        """
        windows = [self.config.window(layer) for layer in range(self.config.layers)]
        chosen = iter(policy(windows.count(None)))
        return [
            next(chosen) if window is None else self.attention_of(layer)
            for layer, window in enumerate(windows)
        ]

    def attention_of(self, layer: int) -> DecodeAttention:
        """A fresh attention of one layer; a model that quantises it overrides this."""
        window = self.config.window(layer)
        return DenseAttention() if window is None else WindowAttention(window)


def generate(
    model: Llama,
    prompt: Sequence[int],
    count: int,
    attentions: Sequence[SequenceAttention] | None = None,
) -> list[int]:
    """The ``count`` likeliest tokens after ``prompt``, one by one, each fed back to the model.

    All layers are held in memory while it runs (four bytes a weight).
    """
    model = in_memory(Llama(model.weights))
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


def biased(layer: Layer, name: str, product: np.ndarray) -> np.ndarray:
    """The product of a matrix, [token, out], with the layer's bias for it, if there is one."""
    return product + layer.biases[name] if name in layer.biases else product


def rms_norm(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * gain over the last axis."""
    square = np.mean(np.square(x), axis=-1, keepdims=True)
    return x / np.sqrt(square + np.float32(eps)) * gain


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x), written with tanh, which cannot overflow."""
    half = np.float32(0.5)
    return x * (half + half * np.tanh(half * x))


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution's integral up to x, approximated by tanh.

    Source: Hendrycks and Gimpel, arXiv:1606.08415, section 2.
    """
    half, slope, cubic = (np.float32(number) for number in (0.5, (2 / np.pi) ** 0.5, 0.044715))
    return half * x * (1 + np.tanh(slope * (x + cubic * x * x * x)))


ACTIVATIONS = {"silu": silu, "gelu": gelu}


def rope_angles(
    positions: np.ndarray, dims: int, base: float, factors: np.ndarray | None = None
) -> np.ndarray:
    """Unit complex numbers [token, dims / 2]: exp(i * position * base^(-2 pair / dims)).

    Computed in float64, because float32 loses the fraction of large angles.
    """
    return np.exp(1j * np.outer(positions, rope_frequencies(dims, base, factors))).astype(
        np.complex64
    )


def rope_frequencies(dims: int, base: float, factors: np.ndarray | None = None) -> np.ndarray:
    """Radians from one position to the next, float64 [dims / 2]: base^(-2 pair / dims) / factor."""
    frequency = base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    return frequency if factors is None else frequency / factors


def rope(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotate the pairs (2i, 2i + 1) of the leading elements of ``x`` [head, token, d] in float32.

    Wq and Wk have their columns permuted for these neighbouring pairs, where most checkpoints pair
    element i with i + d / 2.
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
