"""Gradients of a Llama's loss with respect to what its matrices multiply, by hand, in NumPy.

The loss is the sum of the negative log-likelihoods of each sample's tokens but the first. A layer
is x1 = x + attention(n) Wo, x2 = x1 + (silu(m Wgate) * m Wup) Wdown with n, m = rms_norm(x),
rms_norm(x1).
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from golden.algorithms.attention import grouped
from golden.lm.model import Llama, biased, rms_norm, rope, rope_angles, silu
from golden.lm.progress import Progress, counted
from golden.lm.weights import Config, Layer

_LOGIT_ROWS = 256
_GROUP_TOKENS = 512
"""Whose intermediate results are in memory at a time."""


def fisher_information(
    model: Llama, samples: Sequence[Sequence[int]], *, progress: bool = False
) -> dict[tuple[int, str], np.ndarray]:
    """Diagonal Fisher information of activations: their squared gradients, by layer and input.

    Shapes are as in :func:`activation_gradients`.
    """
    gradients = activation_gradients(model, samples, progress=progress)
    return {key: np.square(gradient, out=gradient) for key, gradient in gradients.items()}


def activation_gradients(
    model: Llama, samples: Sequence[Sequence[int]], *, progress: bool = False
) -> dict[tuple[int, str], np.ndarray]:
    """Gradients [token, dim] of the loss, by layer and input, of the samples' tokens end to end.

    Inputs are ``attn`` (what Wq, Wk and Wv multiply), ``wo``, ``ffn`` (Wgate and Wup) and ``down``.
    Samples do not attend to each other.
    """
    found: dict[tuple[int, str], list[np.ndarray]] = {}
    for index, _, gradients in layer_gradients(model, samples, progress):
        for name, array in gradients.inputs.items():
            found.setdefault((index, name), []).append(array)
    return {key: np.concatenate(arrays) for key, arrays in found.items()}


def layer_gradients(
    model: Llama, samples: Sequence[Sequence[int]], progress: Progress = False
) -> Iterator[tuple[int, "LayerPass", "Gradients"]]:
    """The layers, last one first, for some of the samples after others: index, pass, gradients.

    Samples do not attend to each other. `model` may be folded
    (:class:`golden.algorithms.kllm.fold.FoldedLlama`); its layers are read once for each part of
    the samples.
    """
    c = model.config
    groups = _together_at_most(_GROUP_TOKENS, samples)
    for number in counted(len(groups), "calibration", "part", progress):
        group = groups[number]
        parts = parts_of([len(sample) for sample in group])
        tokens = np.concatenate([np.asarray(sample, np.int64) for sample in group])
        positions = np.arange(len(tokens))  # rotary encoding is relative, so they may go on
        angles = rope_angles(positions, c.rope_dims, c.rope_base, model.weights.rope_factors)
        x, passes = model.embed(tokens), []
        for index in range(c.layers):
            passes.append(LayerPass(c, model.weights.layers[index], x, angles, parts))
            x = passes[-1].result
        back = _loss_back(model, x, tokens, parts)
        gradient = norm_back(x, model.weights.norm, c.norm_eps, back)
        for index in reversed(range(c.layers)):
            layer = passes.pop()
            gradients = layer.back(gradient)
            gradient = gradients.x
            yield index, layer, gradients


def _together_at_most(tokens: int, samples: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """The samples in order, in groups of at most `tokens` tokens or of one sample."""
    groups: list[list[Sequence[int]]] = []
    room = 0
    for sample in samples:
        if len(sample) > room or not groups:
            groups.append([])
            room = tokens
        groups[-1].append(sample)
        room -= len(sample)
    return groups


def parts_of(lengths: Sequence[int]) -> list[slice]:
    """Slices of samples of these lengths, end to end."""
    ends = np.cumsum(lengths)
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


@dataclasses.dataclass(frozen=True)
class Rounding:
    """What a quantised model changes on the way forward.

    On the way back it counts as nothing: a quantised number's gradient is the number's own
    (the straight-through estimator, Bengio et al., arXiv:1308.3432).

    vector
        ``vector(name, x)``: the input of a product, [token, K], names as in
        :func:`activation_gradients`.
    heads
        Queries, keys and values after rotary encoding.
    before_norm
        Whether vectors that are normalised are changed before that.
    """

    vector: Callable[[str, np.ndarray], np.ndarray] = lambda name, x: x
    heads: Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]] = lambda q, k, v: (q, k, v)
    before_norm: bool = False


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Gradients of a layer: `x` [token, dim] of its input, and of `inputs` and `products` of its
    :class:`LayerPass` by the same names.
    """

    x: np.ndarray
    inputs: dict[str, np.ndarray]
    products: dict[str, np.ndarray]


class LayerPass:
    """One layer forward, keeping intermediate results, and backward.

    ``result`` is the layer's, [token, dim], for `x` of the samples in `parts`; ``inputs`` has what
    is multiplied, [token, K], names as in :func:`activation_gradients`, and ``products`` the
    results [token, N] by the names of the matrices, before biases, which queries, keys and values
    may have.

    :raises ValueError: for layers of another kind than Llama's and Qwen2's.
    """

    def __init__(
        self,
        config: Config,
        layer: Layer,
        x: np.ndarray,
        angles: np.ndarray,
        parts: list[slice],
        rounding: Rounding = Rounding(),
    ) -> None:
        c = config
        if c.beyond_llama:
            raise ValueError(f"gradients are of layers like Llama's, without {c.beyond_llama}")
        self._layer, self._eps, self._angles, self._parts = layer, c.norm_eps, angles, parts
        self._rounding = rounding
        n, self._x = self._normalised("attn", x, layer.attn_norm)
        q, k, v = (n @ w for w in (layer.wq, layer.wk, layer.wv))
        self.inputs = {"attn": n}
        self.products = {"wq": q, "wk": k, "wv": v}
        q, k, v = (_heads(biased(layer, name, self.products[name]), c.d) for name in self.products)
        self._q, self._k, self._v = rounding.heads(rope(q, angles), rope(k, angles), v)
        o = np.empty_like(self._q)
        self._p = []
        for part in parts:
            q, k, v = grouped(self._q[:, part], c.kv_heads), self._k[:, part], self._v[:, part]
            p = _causal_softmax(q @ k[:, None].swapaxes(-1, -2) / np.sqrt(c.d).astype(q.dtype))
            self._p.append(p)
            o[:, part] = (p @ v[:, None]).reshape(o[:, part].shape)
        self.inputs["wo"] = rounding.vector("wo", _together(o))
        self.products["wo"] = self.inputs["wo"] @ layer.wo
        x1 = x + self.products["wo"]
        m, self._x1 = self._normalised("ffn", x1, layer.ffn_norm)
        gate, up = m @ layer.gate, m @ layer.up
        inner = rounding.vector("down", silu(gate) * up)
        down = inner @ layer.down
        self.inputs |= {"ffn": m, "down": inner}
        self.products |= {"gate": gate, "up": up, "down": down}
        self.result = x1 + down

    def _normalised(
        self, name: str, x: np.ndarray, gain: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The input of a product, and the vector that was normalised."""
        vector = self._rounding.vector
        if self._rounding.before_norm:
            x = vector(name, x)
            return rms_norm(x, gain, self._eps), x
        return vector(name, rms_norm(x, gain, self._eps)), x

    def back(self, gradient: np.ndarray) -> Gradients:
        """From the gradient of the layer's result."""
        layer, eps = self._layer, self._eps
        inner = gradient @ layer.down.T
        # silu'(x) = s + x s (1 - s) = s + silu(x) (1 - s), with s = sigmoid(x).
        sigmoid = 0.5 + 0.5 * np.tanh(0.5 * self.products["gate"])
        activated = self.products["gate"] * sigmoid
        gate = inner * self.products["up"] * (sigmoid + activated * (1 - sigmoid))
        up = inner * activated
        ffn = gate @ layer.gate.T + up @ layer.up.T
        x1 = gradient + norm_back(self._x1, layer.ffn_norm, eps, ffn)
        wo = x1 @ layer.wo.T
        q, k, v = self._attention_back(_heads(wo, self._q.shape[-1]))
        q, k = rope(q, self._angles.conj()), rope(k, self._angles.conj())
        q, k, v = _together(q), _together(k), _together(v)
        attn = q @ layer.wq.T + k @ layer.wk.T + v @ layer.wv.T
        return Gradients(
            x1 + norm_back(self._x, layer.attn_norm, eps, attn),
            {"attn": attn, "wo": wo, "ffn": ffn, "down": inner},
            {"wq": q, "wk": k, "wv": v, "wo": x1, "gate": gate, "up": up, "down": gradient},
        )

    def _attention_back(self, o: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gradients of q, k and v (after rotation) from the gradient of the heads' results."""
        dq, dk, dv = (np.empty_like(array) for array in (self._q, self._k, self._v))
        kv_heads, _, d = dk.shape
        for part, p in zip(self._parts, self._p, strict=True):
            q, do = grouped(self._q[:, part], kv_heads), grouped(o[:, part], kv_heads)
            k, v = self._k[:, None, part], self._v[:, None, part]
            dv[:, part] = (p.swapaxes(-1, -2) @ do).sum(axis=1)
            dp = do @ v.swapaxes(-1, -2)
            scores = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) / np.sqrt(d).astype(p.dtype)
            dq[:, part] = (scores @ k).reshape(dq[:, part].shape)
            dk[:, part] = (scores.swapaxes(-1, -2) @ q).sum(axis=1)
        return dq, dk, dv


def _loss_back(model: Llama, x: np.ndarray, tokens: np.ndarray, parts: list[slice]) -> np.ndarray:
    """Gradient of the loss with respect to the normalised hidden states, [token, dim]."""
    hidden = rms_norm(x, model.weights.norm, model.config.norm_eps)
    gradient = np.zeros_like(hidden)
    predicts = np.ones(len(tokens), bool)
    predicts[[part.stop - 1 for part in parts]] = False
    rows = np.flatnonzero(predicts)
    for first in range(0, len(rows), _LOGIT_ROWS):
        some = rows[first : first + _LOGIT_ROWS]
        p = hidden[some] @ model.weights.output
        p -= p.max(axis=-1, keepdims=True)
        np.exp(p, out=p)
        p /= p.sum(axis=-1, keepdims=True)
        p[np.arange(len(some)), tokens[some + 1]] -= 1
        gradient[some] = p @ model.weights.output.T
    return gradient


def norm_back(x: np.ndarray, gain: np.ndarray, eps: float, gradient: np.ndarray) -> np.ndarray:
    """Gradient of rms_norm's input from its result's gradient."""
    r = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    gradient = gradient * gain
    return r * (gradient - x * np.square(r) * np.mean(x * gradient, axis=-1, keepdims=True))


def _causal_softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last axis of [..., token, token], the future left out."""
    tokens = scores.shape[-1]
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _heads(x: np.ndarray, d: int) -> np.ndarray:
    """[token, heads * d] to [head, token, d]."""
    return x.reshape(len(x), -1, d).transpose(1, 0, 2)


def _together(x: np.ndarray) -> np.ndarray:
    """[head, token, d] to [token, heads * d]."""
    return x.transpose(1, 0, 2).reshape(x.shape[1], -1)
