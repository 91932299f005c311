"""StreamingLLM: attention sinks and a window of the newest tokens.

Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453.
The paper keeps keys without their positions and encodes those inside the cache, so that the
distance of the sinks never exceeds the window. Here q and k arrive with the positions of the text
encoded; rotary encodings add up, so rotating a key by further positions gives the same.
"""

import numpy as np

from golden.algorithms.attention import (
    DecodeAttention,
    Rope,
    attention_scores,
    floats,
    softmax,
    weighted_sum,
)
from golden.algorithms.cache import KVCache
from golden.lm.model import Llama, rope, rope_angles


class StreamingAttention(DecodeAttention):
    """Attention over the first ``sinks`` tokens, the newest of those after them, and the new one.

    ``capacity`` rows are kept per kv head between steps, the sinks included, and a step attends to
    these and the new token, as in the other policies of this package. When full, the oldest token
    that is not a sink is evicted and the new one takes its slot. ``scale`` multiplies the scores
    before the softmax; 1 / sqrt(d) when not given.

    ``positions`` are "text", where a token keeps its position, or "cache", as published, where the
    tokens of a step are numbered from 0. The latter needs ``rope``, the model's rotary encoding;
    without it ``step`` raises ``ValueError`` as soon as a token is evicted.
    """

    def __init__(
        self,
        capacity: int,
        sinks: int = 4,
        scale: float | None = None,
        positions: str = "text",
        rope: Rope | None = None,
    ) -> None:
        super().__init__()
        if positions not in ("text", "cache"):
            raise ValueError(f"positions must be text or cache, not {positions}")
        self._by_cache, self._rope = positions == "cache", rope
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        if not 0 <= sinks < capacity:
            raise ValueError(
                f"sinks must be between 0 and capacity - 1 = {capacity - 1}, not {sinks}"
            )
        self._capacity, self._sinks, self._scale = capacity, sinks, scale
        self._cache = KVCache()
        self._tokens = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        q, k, v = floats(q, k, v)
        kv_heads, d = k.shape
        position = self._tokens
        self._tokens += 1
        # The cache has one slot more than the capacity, for the new token.
        if position <= self._capacity:
            self._cache.append(k, v)
        else:
            self._cache.k[:, -1], self._cache.v[:, -1] = k, v
        keys = self._cache.k
        if self._by_cache and position > self._capacity:
            keys = self._closer(keys, position - self._capacity)
        scores = softmax(attention_scores(q, keys, self._scale))
        o = weighted_sum(scores, self._cache.v)
        if position >= self._capacity:
            window = self._capacity - self._sinks
            self.evicted.append(position - window)
            slot = self._sinks + (position - self._capacity) % window
            self._cache.k[:, slot], self._cache.v[:, slot] = k, v
        in_view = kv_heads * len(self._cache)
        self.traffic.read(in_view, in_view, d)
        self.traffic.dense(kv_heads * self._tokens, d)
        self.rows = kv_heads * min(self._tokens, self._capacity)
        return o

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """As :meth:`sequence`; the rows that are kept do not depend on the queries."""
        n = k.shape[1]
        if self._tokens or not n:
            super().prefill(q, k, v)
            return
        _, k, v = floats(q, k, v)
        self._tokens, window = n, self._capacity - self._sinks
        self._cache.append(k[:, : self._capacity + 1], v[:, : self._capacity + 1])
        late = np.arange(max(self._capacity, n - window), n)
        slots = self._sinks + (late - self._capacity) % window
        for rows, new in ((self._cache.k, k), (self._cache.v, v)):
            rows[:, slots] = new[:, late]
            rows[:, self._capacity :] = new[:, -1:]
        self.evicted += range(self._sinks, n - window)
        self.rows = len(k) * min(n, self._capacity)

    def _closer(self, keys: np.ndarray, evicted: int) -> np.ndarray:
        """The keys, where the sinks are as near to the new token as in a text without the evicted.

        The window's tokens are the newest, so that their distances are the text's.
        """
        if self._rope is None:
            raise ValueError("positions of the cache need the rotary encoding of a model")
        near = self._rope(keys[:, : self._sinks], evicted)
        return np.concatenate([near, keys[:, self._sinks :]], axis=1)


def rope_of(model: Llama) -> Rope:
    """The model's rotary encoding, to move keys to other positions."""
    c, factors = model.config, model.weights.rope_factors

    def later(k: np.ndarray, positions: int) -> np.ndarray:
        return rope(k, rope_angles(np.array([positions]), c.rope_dims, c.rope_base, factors))

    return later
