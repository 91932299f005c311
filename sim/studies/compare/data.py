"""Queries, keys and values of a layer of a given shape."""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from golden.trace import Trace
from hw.parameters import require

SMOLLM2_D = 64
"""Head size of the model whose queries, keys and values are real."""
DEVIATION, SINK = 2.0, 8.0
"""Of scores that are made: standard deviation, and what the first token has more, in nats."""
LEAST, MOST = 24, 4096
"""Tokens in view."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is compared: heads of `d` elements, with `n` tokens in view, the new one included."""

    d: int
    n: int
    heads: int
    kv_heads: int

    def __post_init__(self):
        power = 8 <= self.d <= 128 and self.d & (self.d - 1) == 0
        require(power, "d must be a power of two from 8 to 128", self.d)
        require(LEAST <= self.n <= MOST, f"n must be from {LEAST} to {MOST}", self.n)
        require(self.heads >= 2, "heads must be at least 2", self.heads)
        fits = self.kv_heads >= 1 and self.heads % self.kv_heads == 0
        require(fits, f"kv-heads must divide {self.heads} (heads)", self.kv_heads)

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def dense_bytes(self) -> int:
        """Bytes of dense attention in FP16: every row of K and V once for a group, and the write of
        the new ones."""
        return 2 * self.kv_heads * (self.n + 1) * self.d * 2


@dataclasses.dataclass(frozen=True, eq=False)
class LayerData:
    """``q [heads, n, d]``, ``k, v [kv heads, n, d]`` as float32, and the scale of scores.

    about
        Where they are from.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    about: str

    def half(self, token: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A token's operands in FP16; ``q`` is scaled."""
        q = (self.q[:, token].astype(np.float64) * self.scale).astype(np.float16)
        return q, self.k[:, token].astype(np.float16), self.v[:, token].astype(np.float16)

    def rows(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``k, v [kv heads, tokens, d]`` in FP16."""
        return self.k[:, tokens].astype(np.float16), self.v[:, tokens].astype(np.float16)


def layer_data(shape: Shape, trace: Path | None) -> LayerData:
    """Of a trace, of the language model where `d` is its head size, or made.

    :raises ParameterError: if the trace has heads of another size, or fewer tokens.
    """
    if trace is not None:
        from sim.drivers.run import load_trace

        return of_trace(shape, load_trace(trace), str(trace))
    if shape.d != SMOLLM2_D:
        return made(shape)
    found = shipped_trace(shape.n)
    if found is None:
        found = captured(shape.n)
    return of_trace(shape, found, "")


def shipped_trace(n: int) -> Trace | None:
    """The trace that ships, if it is long enough."""
    from sim.drivers.run import load_trace

    trace = load_trace(None)
    return trace if trace.attention.k.shape[2] >= n else None


@functools.cache
def captured(n: int) -> Trace:
    """A middle layer of the language model on the first `n` tokens of its text."""
    from golden.lm.capture import capture
    from golden.lm.commands import open_model
    from golden.lm.text import first_tokens, read_text

    text, source = read_text(None)
    model, tokenizer, about = open_model(None)
    tokens = first_tokens(tokenizer, text, n, source)
    layers = [model.config.layers // 2]
    meta = about | {"text": source}
    return capture(model, tokens, layers, activations=0, columns=0, meta=meta)


def of_trace(shape: Shape, trace: Trace, name: str) -> LayerData:
    """A middle layer's heads; beyond the trace's, heads are repeated."""
    q, k, v, scale = trace.attention
    require(k.shape[3] == shape.d, f"d must be the trace's, {k.shape[3]}", shape.d)
    require(k.shape[2] >= shape.n, f"n must be at most the trace's, {k.shape[2]}", shape.n)
    layer, kv_heads = len(q) // 2, k.shape[1]
    of = np.arange(shape.heads) // shape.group % kv_heads
    rank = np.arange(shape.heads) % shape.group
    repeated = shape.kv_heads > kv_heads or shape.group > trace.group
    layers = trace.meta.get("layers", range(len(q)))
    words = [str(trace.meta.get("model", name)), f"layer {layers[layer]}"]
    words += [str(trace.meta["text"])] if "text" in trace.meta else []
    words += [f"token {shape.n}"] + (["heads repeated"] if repeated else [])
    rows = np.arange(shape.kv_heads) % kv_heads
    parts = q[layer][of * trace.group + rank % trace.group], k[layer][rows], v[layer][rows]
    q, k, v = (x[:, : shape.n].astype(np.float32) for x in parts)
    return LayerData(q, k, v, float(scale), ", ".join(words))


def made(shape: Shape) -> LayerData:
    """Normal numbers: keys of one head are alike in nothing but that the first is a sink."""
    rng = np.random.default_rng(1)
    d, n, group = shape.d, shape.n, shape.group
    k, v = rng.standard_normal((2, shape.kv_heads, n, d))
    # All queries have a common part, which the first key has too.
    common = rng.standard_normal((shape.kv_heads, d))
    common /= np.linalg.norm(common, axis=1, keepdims=True)
    k -= (k * common[:, None]).sum(axis=2, keepdims=True) * common[:, None]
    k[:, 0] += SINK * common
    q = DEVIATION * rng.standard_normal((shape.heads, n, d))
    q += np.sqrt(d) * np.repeat(common, group, axis=0)[:, None]
    about = (
        f"made: normal keys and values, scores of a standard deviation of about {DEVIATION:g} nats,"
        f" the first token's {SINK:g} nats above them"
    )
    single = np.float32
    parts = q.astype(single), k.astype(single), v.astype(single)
    return LayerData(*parts, float(1 / np.sqrt(d)), about)
